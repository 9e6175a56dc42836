use tollgate::{NotLocked, lock};

struct User;
struct Failure;

#[lock("a")]
async fn not_a_result() -> String {
    String::new()
}

#[lock("a")]
async fn no_conversion() -> Result<(), Failure> {
    Ok(())
}

#[lock("a:{user}")]
async fn not_a_text(user: User) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", locks = user)]
async fn no_locks(user: User) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", fence = fence)]
async fn wrong_body() -> Result<(), NotLocked> {
    let text: String = fence;
    Ok(())
}

fn main() {}
