//! Input that is checked as it arrives, before a protocol implementation reads it.
//!
//! From the first byte that a check refuses on, the client's bytes are replaced by some that no client
//! may send. So the protocol implementation itself answers the error and closes, in order with what it
//! was writing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Checks the bytes of a connection.
pub(crate) trait InputCheck {
    /// Bytes that break the protocol wherever they begin.
    const BROKEN: &'static [u8];

    /// Checks the next bytes.
    ///
    /// # Errors
    ///
    /// When they are refused; with the place of the first that is.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), usize>;
}

/// A check, and whether it has refused something.
#[derive(Debug)]
pub(crate) struct CheckedInput<C> {
    check: C,
    /// Rest of the bytes that replace the client's.
    ending: Option<&'static [u8]>,
}

impl<C: InputCheck> CheckedInput<C> {
    pub(crate) const fn new(check: C) -> Self {
        Self { check, ending: None }
    }

    /// Reads from the stream, or from what replaces it.
    pub(crate) fn poll_read<S: AsyncRead>(
        &mut self,
        stream: Pin<&mut S>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ending.is_none() {
            let before = buffer.filled().len();
            ready!(stream.poll_read(context, buffer))?;
            let fresh = buffer.filled().get(before..).unwrap_or_default();
            if let Err(at) = self.check.pass(fresh) {
                buffer.set_filled(before.saturating_add(at));
                self.ending = Some(C::BROKEN);
            }
        }
        if let Some(rest) = &mut self.ending {
            let (now, later) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(now);
            *rest = later;
        }
        Poll::Ready(Ok(()))
    }
}
