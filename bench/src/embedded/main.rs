//! `make bench-embedded`: the embedded store and its peers, side by side.
//!
//! One process, one clock, rounds interleaved; each line is the median of the rounds with the
//! lowest and highest beside it. `ratio` is the peer's time over ours: above 1, ours is faster.

mod cases;
mod floor;
mod memory;
mod peers;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        // The memory of each contender is measured in a process of its own.
        ["--memory", contender] => memory::measure(contender),
        ["--only", "floor"] => floor::run(),
        ["--only", prefix] => cases::run(prefix),
        [] => {
            cases::run("");
            floor::run();
            memory::run();
        }
        _ => {
            eprintln!("usage: bench-embedded [--only CASE-PREFIX]");
            std::process::exit(2);
        }
    }
}
