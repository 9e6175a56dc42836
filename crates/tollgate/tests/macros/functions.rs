//! Functions of every kind keep their signature and are limited.

use std::fmt::Display;
use std::sync::Arc;

use tollgate::{EmbeddedStore, Limiter, Refused, RefusedKind, limit, scope};
use tollgate_core::testing::ManualClock;

use crate::wire::ManualClockStore;

pub(crate) fn still() -> Limiter<ManualClockStore> {
    Limiter::new(EmbeddedStore::builder().with_clock(ManualClock::default()))
}

#[limit("2 per 1h")]
async fn plain() -> Result<u8, Refused> {
    Ok(7)
}

#[limit("2 per 1h")]
fn plain_sync() -> Result<u8, Refused> {
    Ok(7)
}

#[tokio::test]
async fn an_async_and_a_sync_function_run_as_often_as_they_may() {
    let limiter = still();
    let outcomes = scope::with(&limiter, async {
        [plain().await.ok(), plain().await.ok(), plain().await.ok()]
    });
    assert_eq!(outcomes.await, [Some(7), Some(7), None]);

    let outcomes = scope::call(&limiter, || [plain_sync().ok(), plain_sync().ok()]);
    assert_eq!(outcomes, [Some(7), Some(7)], "another function, another counter");
    let refused = scope::call(&limiter, plain_sync).unwrap_err();
    assert_eq!(refused.kind(), RefusedKind::Limited);
    assert_eq!(refused.function(), "macros::functions::plain_sync");
    assert_eq!(refused.retry_after().unwrap().as_secs(), 3600);
    assert_eq!(
        refused.to_string(),
        "`macros::functions::plain_sync` is over its limit of 2 per 1h (sliding-log): call again \
         after 3600s"
    );
}

struct Account {
    id: u64,
}

struct Path<T>(T);

/// Patterns, lifetimes, generics and `impl Trait` in one.
#[limit("1 per 1h", by = (id, user.id, name))]
async fn everything<'a, T>(
    Path(id): Path<u64>,
    Account { id: _ }: Account,
    user: &'a Account,
    name: T,
    mut list: Vec<u8>,
    then: impl Fn(&'a Account) -> u64 + Send,
) -> Result<(u64, Vec<u8>), Refused>
where
    T: Display + Send,
{
    list.push(1);
    Ok((then(user) + id, list))
}

#[tokio::test]
async fn values_are_taken_from_whatever_the_arguments_bind() {
    let limiter = still();
    let alice = Account { id: 40 };
    let call = |id, name: &'static str| {
        let other = Account { id: 0 };
        scope::with(&limiter, everything(Path(id), other, &alice, name, vec![], |user| user.id))
    };

    assert_eq!(call(2, "x").await.unwrap(), (42, vec![1]));
    assert!(call(2, "x").await.is_err());
    assert!(call(3, "x").await.is_ok());
    assert!(call(2, "y").await.is_ok());
}

/// `("1", "23")` is not `("12", "3")`.
#[limit("1 per 1h", by = (one, other))]
fn pair(one: &str, other: &str) -> Result<(), Refused> {
    Ok(())
}

#[test]
fn no_two_lists_of_values_are_one_counter() {
    let limiter = still();
    let long = "x".repeat(5_000);
    let pairs = [("1", "23"), ("12", "3"), ("", "123"), ("123", ""), ("1:2", "3"), (&long, "")];
    for (one, other) in pairs {
        assert!(scope::call(&limiter, || pair(one, other)).is_ok(), "{one:.9} {other}");
        assert!(scope::call(&limiter, || pair(one, other)).is_err(), "{one:.9} {other}");
    }
}

#[test]
fn a_value_of_more_than_a_mebibyte_is_refused() {
    let limiter = still();
    let call = |len: usize| scope::call(&limiter, || pair(&"x".repeat(len), ""));
    assert!(call(1 << 20).is_ok());
    assert_eq!(call((1 << 20) + 1).unwrap_err().kind(), RefusedKind::Malformed);
}

struct Orders<S> {
    limiter: Limiter<ManualClockStore>,
    state: S,
}

impl<S: Send + Sync> Orders<S> {
    #[limit("1 per 1h", by = user, limiter = self.limiter)]
    pub async fn create(&self, user: &str) -> Result<&S, Refused> {
        Ok(&self.state)
    }

    #[limit("1 per 1h", limiter = &self.limiter)]
    fn count(&mut self) -> Result<&mut S, Refused> {
        Ok(&mut self.state)
    }

    #[limit("1 per 1h", limiter = limiter)]
    fn open(limiter: Arc<Limiter<ManualClockStore>>) -> Result<Self, Refused>
    where
        S: Default,
    {
        Ok(Self { limiter: limiter.as_ref().clone(), state: S::default() })
    }
}

struct Invoices;

impl Invoices {
    #[limit("1 per 1h", limiter = limiter)]
    fn open(limiter: Arc<Limiter<ManualClockStore>>) -> Result<Self, Refused> {
        Ok(Self)
    }
}

trait Store {
    fn save(&self) -> Result<(), Refused>;
}

impl Store for Invoices {
    #[limit("1 per 1h")]
    fn save(&self) -> Result<(), Refused> {
        Ok(())
    }
}

#[tokio::test]
async fn methods_have_the_counter_of_their_type() {
    let limiter = Arc::new(still());
    let mut orders: Orders<u8> = Orders::open(Arc::clone(&limiter)).unwrap();
    assert!(Orders::<u8>::open(Arc::clone(&limiter)).is_err());
    assert!(Invoices::open(Arc::clone(&limiter)).is_ok(), "another type, another counter");

    assert_eq!(*orders.create("alice").await.unwrap(), 0);
    let refused = orders.create("alice").await.unwrap_err();
    assert_eq!(refused.function(), "macros::functions::Orders<_>::create");
    assert!(orders.create("bob").await.is_ok());
    *orders.count().unwrap() += 1;
    assert!(orders.count().is_err());

    let save = || scope::call(&limiter, || Invoices.save());
    assert!(save().is_ok());
    let path = "<macros::functions::Invoices as macros::functions::Store>::save";
    assert_eq!(save().unwrap_err().function(), path);
}

#[derive(Debug)]
enum Failure {
    Slow(String),
    Text,
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Slow(refused.to_string())
    }
}

type Answer<T> = Result<T, Failure>;

#[limit("1 per 1h", message = "not so fast")]
#[must_use]
fn parse(text: &str) -> Answer<u8> {
    let number = text.parse().map_err(|_| Failure::Text)?;
    if number == 0 {
        return Err(Failure::Text);
    }
    Ok(number)
}

#[limit("1 per 1h", error = |refused: Refused| refused.function().len())]
fn foreign() -> Result<(), usize> {
    Ok(())
}

#[test]
fn the_error_is_the_functions_own() {
    let limiter = still();
    assert!(matches!(scope::call(&limiter, || parse("x")), Err(Failure::Text)));
    let refused = scope::call(&limiter, || parse("1"));
    assert!(matches!(refused, Err(Failure::Slow(text)) if text == "not so fast"));

    assert_eq!(scope::call(&limiter, || (foreign(), foreign())), (Ok(()), Err(26)));
}

/// A bulk call costs as much as it has items.
#[limit("10 per 1h", cost = items.len() as u64, name = "shop::bulk")]
fn bulk(items: &[u8]) -> Result<usize, Refused> {
    Ok(items.len())
}

#[test]
fn a_cost_is_what_the_expression_says() {
    let limiter = still();
    let call = |count: usize| scope::call(&limiter, || bulk(&vec![0; count]));
    assert_eq!(call(7).unwrap(), 7);
    assert!(call(4).is_err());
    assert_eq!(call(3).unwrap(), 3);
    let never = call(11).unwrap_err();
    assert_eq!((never.retry_after(), never.function()), (None, "shop::bulk"));
}

#[limit("2 per 1s burst 4", algorithm = token-bucket)]
fn bursts() -> Result<(), Refused> {
    Ok(())
}

#[limit("2 per 1h", algorithm = "fixed-window", by = ip)]
fn by_argument(ip: &str) -> Result<(), Refused> {
    Ok(())
}

#[test]
fn algorithms_are_the_cores_and_an_argument_goes_before_the_request() {
    let limiter = still();
    let passed = (0..9).filter(|_| scope::call(&limiter, bursts).is_ok()).count();
    assert_eq!(passed, 4);

    let passed = (0..9).filter(|_| scope::call(&limiter, || by_argument("x")).is_ok()).count();
    assert_eq!(passed, 2);
    let refused = scope::call(&limiter, || by_argument("x")).unwrap_err();
    let limit = refused.refusing().unwrap().limit.unwrap().limit().to_string();
    assert_eq!(limit, "2 per 1h (fixed-window)");
}

mod r#inner {
    use super::{Refused, limit};

    #[limit("1 per 1h")]
    pub(super) fn r#match() -> Result<(), Refused> {
        Ok(())
    }

    /// Opaque, and refused all the same.
    #[limit("1 per 1h")]
    pub(super) async fn opaque() -> Result<impl std::fmt::Debug, Refused> {
        Ok([1, 2])
    }
}

#[tokio::test]
async fn raw_names_and_opaque_results_work() {
    let limiter = still();
    assert!(scope::call(&limiter, inner::r#match).is_ok());
    assert!(scope::call(&limiter, inner::r#match).is_err());
    let shown = scope::with(&limiter, inner::opaque()).await.map(|shown| format!("{shown:?}"));
    assert_eq!(shown.unwrap(), "[1, 2]");
    assert!(scope::with(&limiter, inner::opaque()).await.is_err());
}
