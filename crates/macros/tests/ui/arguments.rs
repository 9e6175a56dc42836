use tollgate::{Refused, limit};

#[limit]
fn nothing() -> Result<(), Refused> {
    Ok(())
}

#[limit(5)]
fn a_number() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", mesage = "slowly")]
fn a_slip() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", window = 60)]
fn unknown() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by)]
fn no_value() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = ip, by = ip)]
fn twice() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = (ip, ip))]
fn two_of_one() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "login", "5 per 1m")]
fn rule_with_limits() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = login)]
fn rule_as_a_word() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "login", algorithm = token-bucket)]
fn rule_with_algorithm() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "login")]
#[limit(rule = "login")]
fn rule_twice() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", domain = "shop")]
fn domain_without_rule() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = user)]
fn word_of_the_request() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = header())]
fn header_without_name() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", limiter = one)]
#[limit("5 per 1h", limiter = other)]
fn two_limiters() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m")]
#[limit]
fn bare_sibling() -> Result<(), Refused> {
    Ok(())
}

#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s", "1 per 9s")]
fn nine_limits() -> Result<(), Refused> {
    Ok(())
}

#[limit("1 per 1s", by = (1, 2, 3, 4, 5, 6, 7, 8, 9))]
fn nine_values() -> Result<(), Refused> {
    Ok(())
}

#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s", "1 per 2s", "1 per 3s", "1 per 4s", "1 per 5s", "1 per 6s", "1 per 7s", "1 per 8s")]
#[limit("1 per 1s")]
fn sixty_five_limits() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = "ip")]
fn text_for_the_address() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = (ip, "user"))]
fn text_for_an_attribute() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = header("x api key"))]
fn no_header() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", by = attribute(""))]
fn no_attribute() -> Result<(), Refused> {
    Ok(())
}

#[limit("5 per 1m", name = "")]
fn empty_name() -> Result<(), Refused> {
    Ok(())
}

#[limit(rule = "log\nin")]
fn name_of_two_lines() -> Result<(), Refused> {
    Ok(())
}

fn main() {}
