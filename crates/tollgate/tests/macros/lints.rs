//! Attributes are no reason for a warning in somebody's crate, nor for its names to be others.
#![deny(warnings, clippy::all)]

use tollgate::{Locks, NotLocked, Refused, limit, lock, scope};

use crate::functions::still;

/// On one line, as the formatter leaves none: the compiler has complained about the braces.
#[rustfmt::skip]
mod on_one_line {
    use super::{NotLocked, Refused, limit, lock};

    #[limit("1 per 1h", by = id)]
    pub(super) fn limited(id: u8) -> Result<u8, Refused> { Ok(id) }

    #[limit("1 per 1h", by = id)]
    pub(super) async fn waits(id: u8) -> Result<u8, Refused> { Ok(id) }

    #[lock("one")]
    pub(super) async fn locked(id: u8) -> Result<u8, NotLocked> { Ok(id) }
}

/// Attributes within the body stay there: they have been written before the function.
mod within {
    use super::{NotLocked, Refused, limit, lock};

    #[limit("1 per 1h")]
    pub(super) fn limited() -> Result<u8, Refused> {
        #![allow(unused_variables, reason = "that is what is tried")]
        let unused = 1;
        Ok(2)
    }

    #[lock("two")]
    pub(super) async fn locked() -> Result<u8, NotLocked> {
        #![allow(unused_variables, reason = "that is what is tried")]
        let unused = 1;
        Ok(2)
    }
}

/// Names that code usually means something else by.
mod shadowed {
    #![allow(dead_code, non_camel_case_types, reason = "only their names matter")]

    use super::{NotLocked, Refused, limit, lock};

    mod core {}
    mod std {}
    mod tollgate {}
    struct str;
    struct Some;
    struct Ok;
    struct Err;

    #[limit("1 per 1h", by = call)]
    pub(super) fn limited(call: u8) -> Result<u8, Refused> {
        Result::Ok(call)
    }

    #[lock("three:{call}")]
    pub(super) async fn locked(call: u8) -> Result<u8, NotLocked> {
        Result::Ok(call)
    }
}

#[tokio::test]
async fn no_function_is_warned_about_for_its_attribute() {
    let limiter = still();
    let locks = Locks::new(tollgate::EmbeddedStore::new());

    assert_eq!(scope::call(&limiter, || on_one_line::limited(7)).unwrap(), 7);
    assert_eq!(scope::with(&limiter, on_one_line::waits(7)).await.unwrap(), 7);
    assert_eq!(scope::with_locks(&locks, on_one_line::locked(7)).await.unwrap(), 7);
    assert_eq!(scope::call(&limiter, within::limited).unwrap(), 2);
    assert_eq!(scope::with_locks(&locks, within::locked()).await.unwrap(), 2);
    assert_eq!(scope::call(&limiter, || shadowed::limited(3)).unwrap(), 3);
    assert_eq!(scope::with_locks(&locks, shadowed::locked(3)).await.unwrap(), 3);
}
