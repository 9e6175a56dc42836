//! Bytes per key at the worst fill after growth, from a million keys on.
//!
//! Each contender fills up in a process of its own, so that nothing else is resident; every
//! 5 000 keys from 1 000 000 to 2 500 000 it divides what it has grown by the number of keys,
//! and the highest quotient counts. Peers own their keys, so their strings count as well.

use std::fs;
use std::process::Command;

use crate::cases::KeyBuffer;
use crate::peers::{Contender, Governor, Ours, Throttlecrab, Traffic};

const FROM: u64 = 1_000_000;
const TO: u64 = 2_500_000;
const STEP: u64 = 5_000;

pub fn run() {
    let ours = in_own_process("ours");
    for peer in ["governor", "throttlecrab"] {
        let theirs = in_own_process(peer);
        println!(
            "case=bytes-per-key ours={ours:.1} peer={peer}:{theirs:.1} ratio={:.2}",
            theirs / ours
        );
    }
}

pub fn measure(contender: &str) {
    // The limit is one an hour, so that no key becomes idle meanwhile.
    let worst = match contender {
        "ours" => worst(&Ours::with_room_for(Traffic::Refuse, 4_000_000)),
        "governor" => worst(&Governor::new(Traffic::Refuse)),
        "throttlecrab" => worst(&Throttlecrab::new(Traffic::Refuse)),
        other => panic!("no contender {other}"),
    };
    println!("{worst}");
}

fn in_own_process(contender: &str) -> f64 {
    let myself = std::env::current_exe().expect("this program");
    let output = Command::new(myself).args(["--memory", contender]).output().expect("starts");
    let text = String::from_utf8(output.stdout).expect("digits");
    text.trim().parse().expect("a number")
}

fn worst(contender: &impl Contender) -> f64 {
    let mut key = KeyBuffer::default();
    let before = resident_bytes();
    let mut worst = 0.0_f64;
    for i in 0..TO {
        contender.check(key.set(i));
        if i >= FROM && i.is_multiple_of(STEP) {
            let grown = resident_bytes().saturating_sub(before);
            worst = worst.max(grown as f64 / i as f64);
        }
    }
    worst
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}
