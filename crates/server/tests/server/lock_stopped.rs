//! A holder of `tollgate lock` that is stopped for longer than its lease, as by a machine that sleeps.

use tollgate_harness::{RedisServer, Reply};

use super::lock::{Holding, run, text, until};

#[test]
fn whoever_wakes_after_its_lease_stops_its_command_and_says_lost() {
    let redis = RedisServer::start().unwrap();
    let script =
        "trap 'echo told; exit 3' TERM; echo $TOLLGATE_FENCE; while :; do sleep 0.05; done";
    let args = ["--lease", "1500ms", "--kill-after", "1h", "a"];
    let holding = Holding::start(&redis, &args, script);
    let fence: u64 = holding.said.parse().unwrap();

    holding.signal("STOP");
    until("its lease ends", || redis.command(&[b"EXISTS", b"a"]).unwrap() == Reply::Integer(0));
    let next = run(&redis, &["lock", "-n", "a", "--", "sh", "-c", "echo $TOLLGATE_FENCE"]);
    assert_eq!(next.status.code(), Some(0), "{}", text(&next.stderr));
    assert!(text(&next.stdout).trim().parse::<u64>().unwrap() > fence, "{fence} is stale");
    holding.signal("CONT");

    let (code, said, complaints) = holding.end();
    assert_eq!((code, said.as_str()), (Some(124), "told"), "{complaints}");
    assert!(complaints.contains("\"a\" was lost: the command is sent TERM"), "{complaints}");
}
