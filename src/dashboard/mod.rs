//! The live page: the whole group at a glance, a symbol with its candles and rules.
//!
//! Any worker serves it on its HTTP port, and so does `tickwatch dashboard`. It reads what Redis and Kafka hold, not
//! this process, so every worker shows the same; none of its connections, clients and threads is a worker's own, and
//! while nobody looks there are none.
//!
//! | file | what it is |
//! |---|---|
//! | `collect` | one look each 200 ms for all pages |
//! | `overview`, `partition`, `workers`, `verdict`, `rates`, `words` | what is seen of the group, put together and said; pure |
//! | `symbols`, `symbol`, `notes` | the busiest symbols; one symbol's candles and rules; notifications |
//! | `feed` | a view as Server-Sent Events: differences, resume, slow readers |
//! | `api`, `guard`, `assets` | the routes, who may call them, the files of the page |

mod api;
mod assets;
mod collect;
mod feed;
mod guard;
mod notes;
mod overview;
mod partition;
mod rates;
mod symbol;
mod symbols;
mod verdict;
mod words;
mod workers;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::config::Config;
use crate::domain::Interval;
use crate::store::keys::Keys;
use crate::store::pool::Pool;
use feed::Feed;
use symbols::Names;

/// Most bytes of a request's body: a rule with its note is far smaller.
const MOST_BODY: usize = 16 << 10;

/// The page of one process. Dropping it ends all streams.
#[derive(Debug)]
pub struct Dashboard(Arc<Shared>);

/// A symbol's view: of one interval's candles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SymbolKey {
    symbol: String,
    interval: Interval,
}

/// What the routes and the collector share.
#[derive(Debug)]
struct Shared {
    config: Config,
    keys: Keys,
    pool: Pool,
    /// Readers of all feeds.
    readers: watch::Sender<usize>,
    overview: Arc<Feed>,
    symbols: Mutex<HashMap<SymbolKey, Arc<Feed>>>,
    names: Names,
    /// Symbols whose rules were changed here and not yet read again.
    changed_rules: Mutex<BTreeSet<String>>,
    closed: watch::Sender<bool>,
    /// Whether a worker serves it, or a process of its own.
    served_by: &'static str,
}

impl Dashboard {
    /// The page for the group of `config`. `served_by` is said in its foot line. Connects to nothing yet; within a
    /// runtime.
    pub fn start(config: &Config, served_by: &'static str) -> Dashboard {
        let readers = watch::Sender::new(0);
        let shared = Arc::new(Shared {
            keys: Keys::new(config.namespace.clone()),
            pool: Pool::new(&config.redis),
            overview: Arc::new(Feed::new(readers.clone())),
            readers,
            symbols: Mutex::default(),
            names: Names::default(),
            changed_rules: Mutex::default(),
            closed: watch::Sender::new(false),
            config: config.clone(),
            served_by,
        });
        tokio::spawn(collect::run(Arc::clone(&shared)));
        Dashboard(shared)
    }

    /// The page, its files and what they ask for.
    pub fn routes(&self) -> Router {
        let shared = Arc::clone(&self.0);
        Router::new()
            .route("/", get(assets::page))
            .route("/symbols/{*symbol}", get(assets::page))
            .route("/favicon.ico", get(assets::icon))
            .route("/assets/{*name}", get(assets::file))
            .route("/api/overview", get(api::overview))
            .route("/api/symbol", get(api::symbol))
            .route("/api/symbols", get(api::search))
            .route("/api/rules", axum::routing::post(api::put_rule).delete(api::remove_rule))
            .layer(DefaultBodyLimit::max(MOST_BODY))
            .layer(from_fn_with_state(Arc::clone(&shared), guard::guard))
            .with_state(shared)
    }

    /// Ends all streams: a server that stops in good order waits for them.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn close(&self) {
        self.closed.send_replace(true);
        self.overview.close();
        for feed in self.symbols().values() {
            feed.close();
        }
    }

    fn symbols(&self) -> MutexGuard<'_, HashMap<SymbolKey, Arc<Feed>>> {
        lock(&self.symbols)
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        lock(&self.names)
    }

    fn changed_rules(&self) -> MutexGuard<'_, BTreeSet<String>> {
        lock(&self.changed_rules)
    }

    /// What every view begins with.
    fn about(&self, now: i64) -> Map<String, Value> {
        let Config { namespace, kafka, candles, dashboard, .. } = &self.config;
        let about = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "served_by": self.served_by,
            "topic": kafka.topic,
            "group": kafka.group,
            "namespace": namespace,
            "dead_letters": self.config.dead_letter_topic(),
            "writes": dashboard.allow_writes,
            "intervals": candles.intervals.iter().map(|i| (i.to_string(), json!(i.ms()))).collect::<Map<_, _>>(),
            "max_future": self.config.input.max_future.unwrap_or(candles.lateness).as_millis() as i64,
        });
        let now = now / 1_000 * 1_000; // a clock needs no more frames than this
        [("about".to_owned(), about), ("now".to_owned(), now.into())].into_iter().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
