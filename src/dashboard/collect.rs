//! One look each 200 ms for all pages, and none while nobody looks.
//!
//! A session lasts while somebody looks: a client that asks Kafka, a tail of the notifications, what was seen so far.
//! It ends [`GRACE`] after the last reader left, so that going from one page to another does not start it anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use deadpool_redis::Connection;
use redis::aio::MultiplexedConnection;
use serde_json::{Map, Value};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::feed::Feed;
use super::notes::note;
use super::overview::Overview;
use super::symbol::Symbol;
use super::symbols::Symbols;
use super::{Shared, SymbolKey};
use crate::kafka::onlooker::Onlooker;
use crate::kafka::tail::{Kept, Tail};
use crate::store::sources;

/// Between two frames.
const FRAME: Duration = Duration::from_millis(200);
/// Between two looks at the symbols of the overview, ms.
const SYMBOLS: i64 = 1_000;
/// How long Redis may take until it is said not to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a session outlives its last reader.
const GRACE: Duration = Duration::from_secs(10);
/// Pause when a session cannot be started.
const RETRY: Duration = Duration::from_secs(1);
/// Notifications kept.
const KEPT: usize = 1_000;
/// Most notifications of a frame: a page could not show more, and nobody read them.
const NOTES: usize = 20;
/// Notifications told of one symbol at once.
const SYMBOL_NOTES: usize = 60;
/// Partitions looked for while Kafka has not said how many there are.
const GUESSED: i32 = 64;
/// Partitions read each frame; with more, they are read less often.
const PER_FRAME: usize = 64;

/// Serves all feeds until they are closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut readers = shared.readers.subscribe();
    let mut closed = shared.closed.subscribe();
    loop {
        tokio::select! {
            _ = readers.wait_for(|readers| *readers > 0) => {}
            _ = closed.wait_for(|closed| *closed) => return,
        }
        match Session::start(&shared) {
            Ok(mut session) => tokio::select! {
                () = session.run() => {}
                _ = closed.wait_for(|closed| *closed) => return,
            },
            Err(error) => {
                tracing::warn!("the page cannot be filled: {error:#}");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

struct Session {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    onlooker: Onlooker,
    tail: Tail,
    overview: Overview,
    symbols: Symbols,
    watched: HashMap<SymbolKey, Watched>,
    /// Number of the last notification told.
    told: u64,
    symbols_at: i64,
    frame: usize,
}

/// A symbol that pages look at.
struct Watched {
    feed: Arc<Feed>,
    symbol: Symbol,
    /// It was told no notification yet.
    fresh: bool,
}

impl Session {
    fn start(shared: &Arc<Shared>) -> anyhow::Result<Session> {
        let config = &shared.config;
        Ok(Session {
            shared: Arc::clone(shared),
            connection: None,
            onlooker: Onlooker::start(&config.kafka)?,
            tail: Tail::start(&config.kafka, &config.output.notifications, KEPT)?,
            overview: Overview::new(config),
            symbols: Symbols::new(&config.kafka.topic, &config.candles.intervals, Arc::clone(&shared.names)),
            watched: HashMap::new(),
            told: 0,
            symbols_at: 0,
            frame: 0,
        })
    }

    /// Until nobody has looked for a while.
    async fn run(&mut self) {
        let mut frames = interval(FRAME);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked_at = Instant::now();
        while looked_at.elapsed() < GRACE {
            frames.tick().await;
            if *self.shared.readers.borrow() > 0 {
                looked_at = Instant::now();
                self.look().await;
            }
        }
    }

    async fn look(&mut self) {
        let now = jiff::Timestamp::now().as_millisecond();
        self.frame += 1;
        self.watch();
        // Who is fresh is told all that is kept, the others what is new.
        let after = if self.watched.values().any(|watched| watched.fresh) { 0 } else { self.told };
        let (kept, seen) = self.tail.since(after, KEPT);
        let old = kept.partition_point(|kept| kept.number <= self.told);
        self.told = seen;
        self.overview.kafka_said(now, self.onlooker.view());
        if let Err(error) = self.ask_redis(now).await {
            let words = format!("{:#}", root(&error));
            self.overview.redis_said(now, Err(words));
        }
        self.publish(now, &kept, old);
    }

    /// The feeds that have readers now.
    fn watch(&mut self) {
        let mut feeds = self.shared.symbols();
        feeds.retain(|_, feed| feed.readers() > 0 || feed.is_recent());
        self.watched.retain(|key, _| feeds.contains_key(key));
        for (key, feed) in feeds.iter() {
            self.watched.entry(key.clone()).or_insert_with(|| Watched {
                feed: Arc::clone(feed),
                symbol: Symbol::new(&key.symbol, key.interval),
                fresh: true,
            });
        }
    }

    /// Over one connection as long as it works: taking it from the pool each time would cost more than what it is for.
    async fn ask_redis(&mut self, now: i64) -> anyhow::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => timeout(PATIENCE, shared.pool.get()).await.map_err(|_| late())??,
        };
        self.read(&mut connection, now).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn read(&mut self, conn: &mut MultiplexedConnection, now: i64) -> anyhow::Result<()> {
        let mut partitions = self.overview.partitions();
        if partitions.is_empty() {
            partitions = (0..GUESSED).collect();
        }
        // A group of a thousand partitions is read in turns.
        let turns = partitions.len().div_ceil(PER_FRAME);
        let turn = self.frame % turns;
        let asked: Vec<i32> = partitions.iter().copied().skip(turn).step_by(turns).collect();
        let shared = Arc::clone(&self.shared);
        let topic = &shared.config.kafka.topic;
        let looked =
            timeout(PATIENCE, sources::look(conn, &shared.keys, topic, &asked)).await.map_err(|_| late())??;
        self.overview.redis_said(now, Ok(looked));
        if now - self.symbols_at >= SYMBOLS {
            let refreshed = timeout(PATIENCE, self.symbols.refresh(conn, &shared.keys, &partitions, now)).await;
            self.symbols_at = now;
            tell("the symbols of the page", refreshed.map_err(|_| late()).and_then(|done| done));
        }
        let changed = std::mem::take(&mut *shared.changed_rules());
        for (key, watched) in &mut self.watched {
            if changed.contains(&key.symbol) {
                watched.symbol.rules_changed();
            }
            let refreshed = timeout(PATIENCE, watched.symbol.refresh(conn, &shared.keys, now)).await;
            tell(&format!("the page of {}", key.symbol), refreshed.map_err(|_| late()).and_then(|done| done));
        }
        Ok(())
    }

    /// The first `old` of what is `kept` were told before.
    fn publish(&mut self, now: i64, kept: &[Kept], old: usize) {
        let new = &kept[old..];
        let overview = self.overview.view(now);
        for (key, watched) in &mut self.watched {
            let untold = if std::mem::take(&mut watched.fresh) { kept } else { new };
            let mut notes: Vec<Value> =
                untold.iter().filter(|kept| kept.key == key.symbol).filter_map(note).collect();
            watched.symbol.notes(&notes);
            notes.drain(..notes.len().saturating_sub(SYMBOL_NOTES));
            let mut view = self.shared.about(now);
            view.extend(watched.symbol.view());
            view.extend(surroundings(&overview, view.get("partition")));
            watched.feed.publish(Value::Object(view), notes);
        }
        let newest = &new[new.len().saturating_sub(NOTES)..];
        let mut notes: Vec<(i64, Value)> =
            newest.iter().filter_map(|kept| Some((kept.timestamp, note(kept)?))).collect();
        notes.sort_by_key(|(at, _)| *at); // several partitions' records come in any order
        let mut view = self.shared.about(now);
        view.extend(overview);
        view.insert("symbols".into(), self.symbols.view(|names| self.tail.counts(names.iter().copied())));
        view.insert("notes_seen".into(), self.told.into());
        self.shared.overview.publish(Value::Object(view), notes.into_iter().map(|(_, note)| note).collect());
    }
}

/// What a symbol's page says of the group: its partition, and what does not answer.
fn surroundings(overview: &Map<String, Value>, partition: Option<&Value>) -> Map<String, Value> {
    let mut view = Map::new();
    for name in ["now", "redis_as_of", "kafka_as_of"] {
        view.extend(overview.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let number = partition.map(ToString::to_string);
    let row = number.and_then(|number| overview.get("partitions")?.get(number));
    view.extend(row.map(|row| ("source".to_owned(), row.clone())));
    view
}

fn late() -> anyhow::Error {
    anyhow!("no answer within {} s", PATIENCE.as_secs())
}

/// The innermost cause: on a page there is room for one.
fn root(error: &anyhow::Error) -> String {
    error.root_cause().to_string()
}

fn tell(what: &str, outcome: anyhow::Result<()>) {
    if let Err(error) = outcome.context("it shows what was known before") {
        tracing::debug!("{what} cannot be read: {error:#}");
    }
}
