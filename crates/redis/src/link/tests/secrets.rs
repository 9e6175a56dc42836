//! No password in a log, an error or a `Debug`.

use std::fmt::{Debug, Write};
use std::sync::Mutex;

use tollgate_harness::RedisServer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

const PASSWORD: &str = "hush-7f3a";

/// Keeps everything that anybody in this process logs, the other tests included.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut Text(&mut self.0.lock().unwrap()));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Text(&mut self.0.lock().unwrap()));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0, "{}={value:?}", field.name()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_neither_logged_nor_shown() {
    let log = Log::default();
    // A log for this thread alone would miss what other threads' tests have logged before it came.
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let server = RedisServer::builder().config(format!("requirepass {PASSWORD}")).start().unwrap();
    let url = server.url().replace("://", &format!("://:{PASSWORD}@"));

    let link = link(without_timeout(&url)).await;
    assert_eq!(count(&link).await, 1);
    server.kill().unwrap();
    until("the connection ended", || link.health().connected == 0).await;
    let unavailable = run(&link).await.unwrap_err();
    server.restart().unwrap();
    recovered(&link).await;
    server.command(&[b"CONFIG", b"SET", b"requirepass", b"another"]).unwrap();
    let refused = Link::connect(&without_timeout(&url), COUNT).await.map(|_| ()).unwrap_err();

    let mut shown = log.0.lock().unwrap().clone();
    assert!(shown.contains("connected to redis") && shown.contains("redis cannot be used"));
    write!(shown, "{link:#?} {unavailable:?} {unavailable} {refused:#?} {refused}").unwrap();
    write!(shown, "{:?} {}", refused.source(), refused.source().unwrap()).unwrap();
    assert!(!shown.contains(PASSWORD), "{shown}");
}
