//! The waits of callers when Redis hangs. Needs real time: `make faults`.

use super::*;

const CALLERS: usize = 32;
/// The most time that the breaker may need to notice.
const NOTICE: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_costs_a_deadline_for_a_quarter_of_a_second_and_then_nothing() {
    let (server, link) = linked(|url| Config::new(url).unwrap()).await;
    let link = Arc::new(link);
    recovered(&link).await;
    server.stop().unwrap();
    let stopped = clock::now();

    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let link = Arc::clone(&link);
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while stopped.elapsed() < Duration::from_secs(5) {
                    let sent = clock::now();
                    run(&link).await.unwrap_err();
                    waits.push((sent - stopped, sent.elapsed()));
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for caller in callers {
        waits.extend(caller.await.unwrap());
    }
    server.resume().unwrap();
    let resumed = clock::now();
    recovered(&link).await;
    let recovery = resumed.elapsed();

    let (early, late): (Vec<_>, Vec<_>) = waits.iter().partition(|(at, _)| *at < NOTICE);
    let early = report("the first 250 ms", early);
    let late = report("afterwards", late);
    println!("recovered {recovery:?} after it went on; {:?}", link.health());
    assert!(early <= Duration::from_millis(30), "{early:?}");
    assert!(late <= Duration::from_millis(2), "{late:?}");
}

fn report(when: &str, calls: Vec<(Duration, Duration)>) -> Duration {
    let mut waits: Vec<_> = calls.into_iter().map(|(_, wait)| wait).collect();
    waits.sort_unstable();
    let rank = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
    let (median, p99) = (rank(50), rank(99));
    println!("{when}: {} calls, p50 {median:?}, p99 {p99:?}, max {:?}", waits.len(), rank(100));
    p99
}
