//! The records of one partition from one position on, handed from the poll thread to the partition's task.
//!
//! Each positioning has a channel of its own, so nothing read for an earlier position can come out of it. The
//! channel itself is unbounded; `Backlog` counts what is in it, and the poll thread pauses the partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::domain::{Chunk, Offset};

/// What a [`Reader`] yields.
#[derive(Debug)]
pub enum Feed {
    /// The next records.
    Chunk(Chunk),
    /// There was nothing more at this position, the next to read. It counts control and aborted records, so it
    /// may be beyond the last record's offset + 1.
    End(Offset),
    /// The log does not hold this position (any more): retention, a truncation, a topic made again. The reader
    /// ends here.
    OutOfRange(Offset),
}

/// The records of one partition from one position on. Made by
/// [`SourceHandle::read_from`](super::SourceHandle::read_from).
#[derive(Debug)]
pub struct Reader {
    feed: mpsc::UnboundedReceiver<Feed>,
    backlog: Backlog,
}

impl Reader {
    /// The next thing read; `None` once the partition was revoked, read from elsewhere, or the source closed.
    ///
    /// Cancel-safe: what was not returned stays for the next call.
    pub async fn next(&mut self) -> Option<Feed> {
        let feed = self.feed.recv().await?;
        if let Feed::Chunk(chunk) = &feed {
            self.backlog.taken(chunk);
        }
        Some(feed)
    }
}

/// The poll thread's end of a [`Reader`].
pub(super) struct Feeder {
    feed: mpsc::UnboundedSender<Feed>,
    backlog: Backlog,
}

impl Feeder {
    pub(super) fn new() -> (Feeder, Reader) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let backlog = Backlog::default();
        (Feeder { feed: sender, backlog: backlog.clone() }, Reader { feed: receiver, backlog })
    }

    /// False if the reader was dropped.
    pub(super) fn send(&self, feed: Feed) -> bool {
        if let Feed::Chunk(chunk) = &feed {
            self.backlog.put(chunk);
        }
        self.feed.send(feed).is_ok()
    }

    /// What was sent and not yet taken.
    pub(super) fn buffered(&self) -> Buffered {
        let Backlog { records, bytes } = &self.backlog;
        Buffered { records: records.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

/// How much is in a reader's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffered {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

/// The same, counted by both ends.
#[derive(Debug, Clone, Default)]
struct Backlog {
    records: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Backlog {
    fn put(&self, chunk: &Chunk) {
        self.records.fetch_add(chunk.records.len(), Ordering::Relaxed);
        self.bytes.fetch_add(chunk.weight(), Ordering::Relaxed);
    }

    fn taken(&self, chunk: &Chunk) {
        self.records.fetch_sub(chunk.records.len(), Ordering::Relaxed);
        self.bytes.fetch_sub(chunk.weight(), Ordering::Relaxed);
    }
}
