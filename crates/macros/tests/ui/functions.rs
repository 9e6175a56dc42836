use tollgate::{Refused, limit};

#[limit("5 per 1m")]
struct NotAFunction;

trait Mail {
    #[limit("5 per 1m")]
    fn no_body(&self) -> Result<(), Refused>;
}

#[limit("5 per 1m")]
fn returns_nothing() {}

#[limit("5 per 1m")]
const fn constant() -> Result<(), Refused> {
    Ok(())
}

fn main() {}
