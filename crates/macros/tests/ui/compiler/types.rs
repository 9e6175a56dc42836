use tollgate::Store;
use tollgate::{Limiter, Refused, limit};

struct User;
struct Failure;

#[limit("5 per 1m")]
fn not_a_result() -> String {
    String::new()
}

#[limit("5 per 1m")]
async fn no_conversion() -> Result<(), Failure> {
    Ok(())
}

#[limit("5 per 1m", by = user)]
fn not_a_value(user: User) -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", limiter = limiter)]
fn sync_on_a_remote_store<S: Store + 'static>(limiter: &Limiter<S>) -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", cost = "two")]
fn cost_is_no_number() -> Result<(), Refused> {
    Ok(())
}

fn main() {}
