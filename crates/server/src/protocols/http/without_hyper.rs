//! Checks that arrive whole, answered without hyper.
//!
//! Most requests at this listener are `POST /v1/check` in one piece, with no field in the head that changes
//! how it is read. Such a request is parsed in place, and answered in one write. hyper reads all others from
//! their first byte: requests in several pieces, with uncommon fields, or with any error. So nothing here
//! writes an error, and both paths give the same answer to the same request; a test compares them.
//!
//! Requests answered here must be a subset of those hyper accepts: heads are read by hyper's parser, after
//! `framing.rs` has seen them.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Method;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tollgate::Admission;
use tollgate::Store as _;

use super::wire::{self, CheckAnswer, CheckRequest};
use super::{check, token};
use crate::http::{Handover, RawConnection, harmless_id};
use crate::state::ServerState;
use crate::store::at_once;
use crate::telemetry::counts::{InFlightRequest, Protocol};

/// Bytes per read: one typical request, or several.
const INPUT: usize = 4 * 1024;

/// Beyond this, answers are sent before the next request is looked at.
const OUTPUT: usize = 8 * 1024;

/// The longest buffer of answers that is kept between requests.
const KEPT: usize = 2 * 1024;

/// The most fields of a head; hyper takes more.
const MAX_FIELDS: usize = 24;

const LINE: &[u8] = b"POST /v1/check HTTP/1.1\r\n";

/// Answers whole checks, until another request comes.
pub(super) async fn serve<S>(connection: &mut RawConnection<'_, S>) -> io::Result<Handover>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let mut input = vec![0; INPUT];
    let mut answers = ResponseBuffer::default();
    loop {
        let length = read(connection, &mut input).await?;
        let mut rest = input.get(..length).unwrap_or_default();
        if rest.is_empty() {
            connection.stream.shutdown().await?;
            return Ok(Handover::End);
        }
        while let Some((request, behind)) = WholeRequest::read(rest) {
            let Some(admission) = request.judge(connection.server).await else { break };
            answers.add(connection.server, &request, &admission);
            rest = behind;
            // An answer from Redis does not wait for the requests behind it.
            if answers.bytes.len() > OUTPUT || connection.server.limiter.store().is_remote() {
                answers.send(connection).await?;
            }
        }
        answers.send(connection).await?;
        if !rest.is_empty() {
            return Ok(Handover::Hyper(rest.to_vec()));
        }
    }
}

/// Reads the next bytes; none when the client has left, or the server stops.
async fn read<S>(connection: &mut RawConnection<'_, S>, input: &mut [u8]) -> io::Result<usize>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let mut buffer = ReadBuf::new(input);
    poll_fn(|context| {
        match Pin::new(&mut *connection.stream).poll_read(context, &mut buffer) {
            Poll::Pending if !connection.stop.is_now(context) => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            // Between two requests the client is owed no answer.
            Poll::Pending | Poll::Ready(Ok(())) => {}
        }
        Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}

/// A request in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeRequest<'b> {
    id: Option<&'b str>,
    authorization: Option<&'b [u8]>,
    body: &'b [u8],
}

impl<'b> WholeRequest<'b> {
    /// The request that these bytes begin with, if it is a common one, and the bytes behind it.
    fn read(bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let fields_on = bytes.strip_prefix(LINE)?;
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let Ok(httparse::Status::Complete((head, fields))) =
            httparse::parse_headers(fields_on, &mut fields)
        else {
            return None;
        };
        let (mut host, mut length, mut said_id, mut authorization) = (None, None, None, None);
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            let once = match field.name.len() {
                4 if is("host") => &mut host,
                12 if is("x-request-id") => &mut said_id,
                13 if is("authorization") => &mut authorization,
                14 if is("content-length") => &mut length,
                10 if is("connection") && field.value.eq_ignore_ascii_case(b"keep-alive") => {
                    continue;
                }
                6 if is("expect") => return None,
                7 if is("upgrade") => return None,
                10 if is("connection") => return None,
                17 if is("transfer-encoding") => return None,
                _ => continue,
            };
            if once.replace(field.value).is_some() {
                return None;
            }
        }
        host?;
        let (body, behind) = fields_on.get(head..)?.split_at_checked(digits(length?)?)?;
        let id = said_id.and_then(harmless_id);
        Some((Self { id, authorization, body }, behind))
    }

    /// Decides the request; `None` leaves it to hyper, which answers errors.
    async fn judge(&self, server: &ServerState) -> Option<Admission> {
        if let Some(expected) = &server.settings.api_token
            && !expected.matches(self.authorization.and_then(token).unwrap_or_default())
        {
            return None;
        }
        // The last answer closes its connection, which is hyper's business.
        if server.is_draining() || server.refuses_all() {
            return None;
        }
        let check: CheckRequest<'_> = wire::read(self.body).ok()?;
        let (ask, patience) = (check.ask().ok()?, check::patience(&check).ok()?);
        let in_flight = Some(InFlightRequest::new(&server.counts, Protocol::Http));
        Some(if server.limiter.store().is_remote() {
            // In a box: it is long, and the task of a connection that is idle would be as long.
            Box::pin(check::judge(server, &ask, patience, in_flight)).await
        } else {
            at_once(check::judge(server, &ask, patience, in_flight))
        })
    }
}

/// Length of the first request in these bytes, if it is answered here.
#[cfg(test)]
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    WholeRequest::read(bytes).map(|(_, behind)| bytes.len().saturating_sub(behind.len()))
}

/// A length as hyper takes it, of as many digits as `INPUT` has.
fn digits(text: &[u8]) -> Option<usize> {
    let plain = (1..=4).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| plain)?.parse().ok()
}

/// Answers that are to be sent.
#[derive(Default)]
struct ResponseBuffer {
    bytes: Vec<u8>,
    /// The body of the last one.
    body: Vec<u8>,
    date: DateField,
}

impl ResponseBuffer {
    fn add(&mut self, server: &ServerState, request: &WholeRequest<'_>, admission: &Admission) {
        let id = request.id.map_or_else(|| server.request_id().into(), Cow::Borrowed);
        tracing::debug!(request = &*id, method = %Method::POST, "HTTP request");
        self.body.clear();
        // Writing into memory does not fail.
        let _ = serde_json::to_writer(&mut self.body, &CheckAnswer::new(admission));
        let (length, date) = (self.body.len(), self.date.text());
        let _ = write!(
            self.bytes,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: {id}\r\n\
             content-length: {length}\r\ndate: {date}\r\n\r\n"
        );
        self.bytes.extend_from_slice(&self.body);
    }

    async fn send<S>(&mut self, connection: &mut RawConnection<'_, S>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        if !self.bytes.is_empty() {
            connection.phase.idle();
            connection.stream.write_all(&self.bytes).await?;
            // Under TLS what was written may wait for more.
            connection.stream.flush().await?;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.body.shrink_to(KEPT);
        }
        Ok(())
    }
}

/// The second of the last answer, as HTTP writes it.
#[derive(Default)]
struct DateField {
    second: u64,
    text: String,
}

impl DateField {
    /// The current date by the system's clock, as hyper does; the store's is unknown before its first answer.
    #[expect(clippy::disallowed_methods, reason = "a field for caches: nothing is decided by it")]
    fn text(&mut self) -> &str {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.at(since.as_secs())
    }

    fn at(&mut self, second: u64) -> &str {
        /// The last one that can be written.
        const LAST: u64 = 253_402_300_799;
        if self.text.is_empty() || second != self.second {
            let since = Duration::from_secs(second.min(LAST));
            let time = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
            *self = Self { second, text: httpdate::fmt_http_date(time) };
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tokio::sync::watch;

    use super::*;
    use crate::Server;
    use crate::http::StopSignal;
    use crate::http::deadline::{ConnectionPhase, DeadlineStream};
    use crate::settings::Settings;
    use crate::telemetry::log::LevelHandle;

    const BODY: &str = r#"{"domain":"shop"}"#;

    fn text(fields: &str, body: &str) -> String {
        format!("POST /v1/check HTTP/1.1\r\n{fields}\r\n{body}")
    }

    #[test]
    fn a_common_request_is_read_and_what_is_behind_it_is_left() {
        let fields = "host: a\r\nACCEPT: */*\r\nConnection: keep-Alive\r\nContent-Length: 17\r\nX-Request-Id: 7\r\nAuthorization: Bearer t\r\n";
        let bytes = format!("{}POST", text(fields, BODY));

        let (request, behind) = WholeRequest::read(bytes.as_bytes()).unwrap();

        let authorization = Some(&b"Bearer t"[..]);
        assert_eq!(request, WholeRequest { id: Some("7"), authorization, body: BODY.as_bytes() });
        assert_eq!(behind, b"POST");
    }

    #[test]
    fn whatever_is_uncommon_is_left_to_hyper() {
        let length = "Content-Length: 17\r\n";
        let many: String = (0..23).map(|number| format!("X-{number}: a\r\n")).collect();
        for fields in [
            format!("Host: a\r\n{length}Connection: close\r\n"),
            format!("Host: a\r\n{length}Connection: keep-alive, upgrade\r\n"),
            format!("Host: a\r\n{length}Expect: 100-continue\r\n"),
            format!("Host: a\r\n{length}Upgrade: h2c\r\n"),
            format!("Host: a\r\n{length}Transfer-Encoding: chunked\r\n"),
            format!("Host: a\r\n{length}{length}"),
            format!("Host: a\r\nHost: a\r\n{length}"),
            format!("Host: a\r\nX-Request-Id: 1\r\nX-Request-Id: 2\r\n{length}"),
            format!("Host: a\r\nAuthorization: a\r\nAuthorization: b\r\n{length}"),
            format!("Host: a\r\n{many}{length}"),
            format!("Host : a\r\n{length}"),
            format!("Host: a\r\nX: a\r\n b\r\n{length}"),
            "Host: a\r\nContent-Length: +17\r\n".to_owned(),
            "Host: a\r\nContent-Length: 17, 17\r\n".to_owned(),
            "Host: a\r\nContent-Length: 18\r\n".to_owned(),
            "Host: a\r\nContent-Length: 00017\r\n".to_owned(),
            "Host: a\r\n".to_owned(),
            length.to_owned(),
        ] {
            assert_eq!(WholeRequest::read(text(&fields, BODY).as_bytes()), None, "{fields:?}");
        }
        let common = text(&format!("Host: a\r\n{length}"), BODY);
        assert!(WholeRequest::read(common.as_bytes()).is_some());
        for (is, not) in [("POST", "PUT"), ("/v1/check", "/v1/check?"), ("1.1", "1.0")] {
            assert_eq!(WholeRequest::read(common.replacen(is, not, 1).as_bytes()), None, "{not}");
        }
        for cut in 0..common.len() {
            assert_eq!(WholeRequest::read(&common.as_bytes()[..cut]), None, "in pieces");
        }
    }

    /// Serves this input, and returns the output and the next step.
    async fn served(said: &[u8]) -> (String, Handover) {
        let server =
            Server::start(Settings::on_free_ports(), LevelHandle::default()).await.unwrap();
        let (_stops, stopped) = watch::channel(false);
        let (mut client, stream): (DuplexStream, DuplexStream) = duplex(64 * 1024);
        let phase = Arc::new(ConnectionPhase::default());
        let mut stream = DeadlineStream::new(stream, Arc::clone(&phase));
        let mut stop = StopSignal::new(Arc::clone(server.state()), stopped);
        client.write_all(said).await.unwrap();
        client.shutdown().await.unwrap();
        let mut plain = RawConnection {
            server: server.state(),
            stream: &mut stream,
            phase: &phase,
            stop: &mut stop,
        };

        let next = serve(&mut plain).await.unwrap();

        drop(stream);
        let mut told = String::new();
        client.read_to_string(&mut told).await.unwrap();
        (told, next)
    }

    #[tokio::test]
    async fn whole_checks_are_answered_here_and_nothing_else_is() {
        let whole = text("Host: a\r\nContent-Length: 17\r\n", BODY);
        let wrong = text("Host: a\r\nContent-Length: 17\r\n", r#"{"domain":"shop"]"#);
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

        let answers = |told: &str| told.matches("HTTP/1.1 200 OK\r\n").count();
        let (told, next) = served(whole.repeat(3).as_bytes()).await;
        assert_eq!((answers(&told), next), (3, Handover::End), "{told}");
        for behind in [get, &wrong, &whole[..60], "\r\n"] {
            let (told, next) = served(format!("{whole}{whole}{behind}").as_bytes()).await;
            assert_eq!((answers(&told), next), (2, Handover::Hyper(behind.into())), "{told}");
        }
        let (told, next) = served(&b"x".repeat(INPUT * 2)).await;
        assert_eq!((told.as_str(), next), ("", Handover::Hyper(b"x".repeat(INPUT))));
        assert_eq!(served(b"").await, (String::new(), Handover::End));
    }

    #[test]
    fn the_date_can_always_be_written() {
        let mut date = DateField::default();
        for (second, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1, "Thu, 01 Jan 1970 00:00:01 GMT"),
            (1_763_424_000, "Tue, 18 Nov 2025 00:00:00 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(date.at(second), text);
        }
        assert!(date.text().ends_with(" GMT") && !date.text().contains("9999"));
    }
}
