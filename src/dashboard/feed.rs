//! One live view, as Server-Sent Events: each frame is encoded once for all who look.
//!
//! A frame is an RFC 7386 merge patch from the frame before, so what is unknown is left out of a view, never null. The
//! last [`KEPT`] of frames are kept; whoever comes back within that time goes on where it was (`Last-Event-ID`), whoever
//! is further behind, or reads too slowly, gets the whole view. A reader takes frames when its connection has room for
//! them: nobody waits for it, and nothing piles up for it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::{Map, Value};
use tokio::sync::watch;

/// How long frames are kept for those who come back.
const KEPT: Duration = Duration::from_mins(1);
/// Most bytes of frames kept.
const KEPT_BYTES: usize = 8 << 20;
/// A reader further behind than this many frames while it is connected gets the whole view instead.
const MOST_BEHIND: u64 = 25;
/// Most notes kept for the whole view.
const KEPT_NOTES: usize = 60;
/// Silence after which a comment is sent, so that a dead connection is noticed at both ends.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A view and its past.
#[derive(Debug)]
pub(super) struct Feed {
    /// Tells ids of this feed from those of others, in other processes too.
    name: String,
    inner: Mutex<Inner>,
    /// Number of the newest frame; `None` when no more will come.
    newest: watch::Sender<Option<u64>>,
    readers: AtomicUsize,
    /// Readers of all feeds.
    all: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Inner {
    view: Value,
    notes: VecDeque<Value>,
    /// Number of the newest frame.
    newest: u64,
    frames: VecDeque<Frame>,
    bytes: usize,
    whole: Option<Bytes>,
}

#[derive(Debug)]
struct Frame {
    number: u64,
    at: Instant,
    event: Bytes,
}

impl Feed {
    /// `all` counts the readers of all feeds.
    pub(super) fn new(all: watch::Sender<usize>) -> Feed {
        Feed {
            name: format!("{:08x}", rand::random::<u32>()),
            inner: Mutex::default(),
            newest: watch::Sender::new(Some(0)),
            readers: AtomicUsize::new(0),
            all,
        }
    }

    /// How many read now.
    pub(super) fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Makes a frame of what changed since the last one; none if nothing did. `notes` are events: each is told once.
    pub(super) fn publish(&self, view: Value, notes: Vec<Value>) {
        let mut inner = self.inner();
        let patch = difference(&inner.view, &view);
        if patch.is_none() && notes.is_empty() {
            return;
        }
        inner.newest += 1;
        let number = inner.newest;
        let mut message = Map::new();
        message.extend(patch.map(|patch| ("patch".to_owned(), patch)));
        if !notes.is_empty() {
            message.insert("notes".to_owned(), Value::Array(notes.clone()));
        }
        let event = self.event("patch", number, &Value::Object(message));
        inner.bytes += event.len();
        inner.frames.push_back(Frame { number, at: Instant::now(), event });
        while let Some(oldest) = inner.frames.front()
            && (oldest.at.elapsed() > KEPT || inner.bytes > KEPT_BYTES)
        {
            inner.bytes -= oldest.event.len();
            inner.frames.pop_front();
        }
        inner.notes.extend(notes);
        let surplus = inner.notes.len().saturating_sub(KEPT_NOTES);
        inner.notes.drain(..surplus);
        inner.view = view;
        inner.whole = None;
        drop(inner);
        self.newest.send_modify(|newest| *newest = newest.map(|_| number));
    }

    /// Whether somebody may still come back to it.
    pub(super) fn is_recent(&self) -> bool {
        self.inner().frames.back().is_none_or(|newest| newest.at.elapsed() < KEPT)
    }

    /// Ends every reader's stream.
    pub(super) fn close(&self) {
        self.newest.send_replace(None);
    }

    /// The events for one reader, from behind the event `last` on if that is known.
    pub(super) fn read(
        self: Arc<Self>,
        last: Option<&str>,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
        let last = last.and_then(|id| id.strip_prefix(self.name.as_str())?.strip_prefix('-')?.parse().ok());
        self.readers.fetch_add(1, Ordering::Relaxed);
        self.all.send_modify(|readers| *readers += 1);
        let newest = self.newest.subscribe();
        let reader = Reader { feed: self, newest, sent: last, connected: false, heartbeat: HEARTBEAT };
        unfold(reader, |mut reader| async move { reader.next().await.map(|event| (Ok(event), reader)) })
    }

    /// What a reader that has everything up to `sent` gets, and the number it then has.
    fn after(&self, sent: Option<u64>, most_behind: u64) -> Option<(Bytes, u64)> {
        let mut inner = self.inner();
        let newest = inner.newest;
        if newest == 0 || sent == Some(newest) {
            return None;
        }
        let oldest = inner.frames.front().map_or(newest + 1, |frame| frame.number);
        if let Some(sent) = sent.filter(|sent| *sent < newest && sent + 1 >= oldest && newest - sent <= most_behind)
        {
            let mut missing = inner.frames.iter().skip((sent + 1 - oldest) as usize).map(|frame| &frame.event);
            let event = match (missing.next(), missing.next()) {
                (Some(one), None) => one.clone(),
                (first, second) => {
                    first.into_iter().chain(second).chain(missing).flat_map(|e| e.iter().copied()).collect()
                }
            };
            return Some((event, newest));
        }
        let whole = inner.whole.take().unwrap_or_else(|| {
            let notes = inner.notes.iter().cloned().collect();
            let message = [("whole".to_owned(), inner.view.clone()), ("notes".to_owned(), Value::Array(notes))];
            self.event("whole", newest, &Value::Object(message.into_iter().collect()))
        });
        inner.whole = Some(whole.clone());
        Some((whole, newest))
    }

    fn event(&self, kind: &str, number: u64, message: &Value) -> Bytes {
        format!("event: {kind}\nid: {}-{number}\ndata: {message}\n\n", self.name).into()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection.
struct Reader {
    feed: Arc<Feed>,
    newest: watch::Receiver<Option<u64>>,
    sent: Option<u64>,
    /// Whether it was sent anything: who comes back may be far behind, who is connected not.
    connected: bool,
    heartbeat: Duration,
}

impl Reader {
    /// The next piece of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            (*self.newest.borrow_and_update())?;
            let most_behind = if self.connected { MOST_BEHIND } else { u64::MAX };
            if let Some((event, number)) = self.feed.after(self.sent, most_behind) {
                self.sent = Some(number);
                self.connected = true;
                return Some(event);
            }
            match tokio::time::timeout(self.heartbeat, self.newest.changed()).await {
                Ok(changed) => changed.ok()?,
                Err(_) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.readers.fetch_sub(1, Ordering::Relaxed);
        self.feed.all.send_modify(|readers| *readers -= 1);
    }
}

/// The merge patch that makes `new` of `old`; `None` if they are the same.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
            let changed = new.iter().filter_map(|(key, value)| {
                let changed = old.get(key).map_or(Some(value.clone()), |before| difference(before, value));
                Some((key.clone(), changed?))
            });
            let patch: Map<String, Value> = gone.chain(changed).collect();
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (old, new) => (old != new).then(|| new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(event: &Bytes) -> &str {
        std::str::from_utf8(event).unwrap()
    }

    /// What a page does with a patch (RFC 7386).
    fn merge(view: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *view = patch.clone();
            return;
        };
        if !view.is_object() {
            *view = json!({});
        }
        let view = view.as_object_mut().unwrap();
        for (key, value) in patch {
            if value.is_null() {
                view.remove(key);
            } else {
                merge(view.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }

    async fn next(stream: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin)) -> Bytes {
        stream.next().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn who_comes_back_goes_on_behind_its_last_event() {
        let feed = Arc::new(Feed::new(watch::Sender::new(0)));
        feed.publish(json!({"lag": 1}), vec![]);
        let mut first = Box::pin(Arc::clone(&feed).read(None));
        let whole = next(&mut first).await;
        assert!(text(&whole).starts_with("event: whole\n") && text(&whole).contains(r#""whole":{"lag":1}"#));
        let id = text(&whole).lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
        drop(first);
        feed.publish(json!({"lag": 2}), vec![json!("fired")]);
        feed.publish(json!({"lag": 2, "up": true}), vec![]);
        let missed = next(&mut Box::pin(Arc::clone(&feed).read(Some(&id)))).await;
        assert_eq!(text(&missed).matches("event: patch").count(), 2, "{}", text(&missed));
        assert!(text(&missed).contains(r#"{"notes":["fired"],"patch":{"lag":2}}"#), "{}", text(&missed));
        let stranger = next(&mut Box::pin(Arc::clone(&feed).read(Some("00000000-1")))).await;
        assert!(text(&stranger).contains(r#""whole":{"lag":2,"up":true}"#));
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_whole_view_instead_of_all_it_missed() {
        let feed = Arc::new(Feed::new(watch::Sender::new(0)));
        feed.publish(json!({"n": 0}), vec![]);
        let mut slow = Box::pin(Arc::clone(&feed).read(None));
        next(&mut slow).await;
        for n in 1..=MOST_BEHIND + 1 {
            feed.publish(json!({"n": n}), vec![]);
        }
        assert!(text(&next(&mut slow).await).contains(r#""whole":{"n":26}"#));
    }

    #[tokio::test]
    async fn readers_are_counted_and_a_closed_feed_ends() {
        let feed = Arc::new(Feed::new(watch::Sender::new(0)));
        feed.publish(json!({"n": 0}), vec![]);
        let mut reader = Box::pin(Arc::clone(&feed).read(None));
        assert_eq!((feed.readers(), *feed.all.borrow()), (1, 1));
        next(&mut reader).await;
        feed.close();
        assert!(reader.next().await.is_none());
        drop(reader);
        assert_eq!((feed.readers(), *feed.all.borrow()), (0, 0));
    }

    #[tokio::test]
    async fn silence_is_broken_by_a_comment() {
        let feed = Arc::new(Feed::new(watch::Sender::new(1)));
        let (newest, heartbeat) = (feed.newest.subscribe(), Duration::from_millis(1));
        feed.readers.fetch_add(1, Ordering::Relaxed);
        let mut reader = Reader { feed, newest, sent: None, connected: false, heartbeat };
        assert_eq!(reader.next().await.as_deref(), Some(&b":\n\n"[..]));
    }

    #[test]
    fn a_view_that_did_not_change_makes_no_frame() {
        let feed = Feed::new(watch::Sender::new(0));
        feed.publish(json!({"n": {"a": [1]}}), vec![]);
        feed.publish(json!({"n": {"a": [1]}}), vec![]);
        assert_eq!(feed.inner().frames.len(), 1);
    }

    fn any_view() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..9_i64).prop_map(Value::from)];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_new_view_of_the_old(old in any_view(), new in any_view()) {
            let mut patched = old.clone();
            if let Some(patch) = difference(&old, &new) {
                merge(&mut patched, &patch);
            }
            prop_assert_eq!(patched, new);
        }
    }
}
