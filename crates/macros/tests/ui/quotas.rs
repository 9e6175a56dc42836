use tollgate::{Refused, limit};

#[limit("5 a minute")]
fn shape() -> Result<(), Refused> {
    Ok(())
}

#[limit("1.5 per 1s")]
fn fraction() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1 minute")]
fn words() -> Result<(), Refused> {
    Ok(())
}

#[limit("0 per 1m")]
fn zero() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", "many concurrent")]
fn holders() -> Result<(), Refused> {
    Ok(())
}

#[limit("100 per 1m burst 20")]
fn burst() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", "9 per 1m")]
fn twins() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", algorithm = sliding-lag)]
fn algorithm() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", algorithm = concurrency)]
fn concurrency() -> Result<(), Refused> {
    Ok(())
}

fn main() {}
