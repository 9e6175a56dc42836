#![allow(unused_mut, unused_variables)]

use tollgate::{NotLocked, lock};

#[lock("order")]
struct NotAFunction;

#[lock("order")]
fn not_async() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order")]
async fn returns_nothing() {}

#[lock("one")]
#[lock("other")]
async fn two_locks() -> Result<(), NotLocked> {
    Ok(())
}

#[lock]
async fn no_name() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("")]
async fn empty_name() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", "b")]
async fn two_names() -> Result<(), NotLocked> {
    Ok(())
}

#[lock(7)]
async fn number() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{order_id")]
async fn no_end(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:}")]
async fn no_beginning(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{}")]
async fn no_argument(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{oder_id}")]
async fn misspelt(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{self.id}")]
async fn no_self(mut list: Vec<u8>) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{order_id:?}")]
async fn formatted(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("order:{order_id + 1}")]
async fn computed(order_id: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("{from}{to}")]
async fn nothing_between(from: u64, to: u64) -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", by = ())]
async fn by_nothing() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", wait = 5)]
async fn wait_number() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", wait = "soon")]
async fn wait_word() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", lease = "1ms")]
async fn short_lease() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", lease = 30)]
async fn lease_number() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", fence = "f")]
async fn fence_text() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", wait)]
async fn no_value() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", wait = "1s", wait = "2s")]
async fn twice() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", leese = "1s")]
async fn slip() -> Result<(), NotLocked> {
    Ok(())
}

#[lock("a", renewal = "1s")]
async fn unknown() -> Result<(), NotLocked> {
    Ok(())
}

fn main() {}
