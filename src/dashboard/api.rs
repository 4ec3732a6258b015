//! What pages ask for: the live views, names to search, and changes of rules.

use std::sync::Arc;

use anyhow::Context as _;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract};
use serde::Deserialize;
use serde_json::json;

use super::feed::Feed;
use super::guard::refuse;
use super::{Shared, SymbolKey};
use crate::domain::{Op, Trigger};
use crate::input::MAX_SYMBOL;
use crate::store::rules::{self, Replication, Rule, RuleOptions, parse_threshold};

/// Most live pages at a time.
const MOST_READERS: usize = 500;
/// Most symbols looked at one by one at a time.
const MOST_SYMBOLS: usize = 50;
/// Most names a search answers with.
const MOST_NAMES: usize = 12;

/// Where a reader was.
#[derive(Debug, Deserialize)]
pub(super) struct Resume {
    /// The last event it has, where it cannot send the header: a connection it made itself.
    last: Option<String>,
}

/// The live view of the whole group.
pub(super) async fn overview(
    State(shared): State<Arc<Shared>>,
    Query(resume): Query<Resume>,
    headers: HeaderMap,
) -> Response {
    let feed = Arc::clone(&shared.overview);
    events(&shared, feed, resume.last.as_deref(), &headers)
}

/// Which symbol's view.
#[derive(Debug, Deserialize)]
pub(super) struct OfSymbol {
    symbol: String,
    interval: Option<String>,
    last: Option<String>,
}

/// The live view of a symbol.
pub(super) async fn symbol(
    State(shared): State<Arc<Shared>>,
    Query(of): Query<OfSymbol>,
    headers: HeaderMap,
) -> Response {
    let intervals = &shared.config.candles.intervals;
    let wanted = of.interval.as_deref();
    let interval = intervals.iter().find(|known| wanted.is_none_or(|wanted| known.to_string() == wanted));
    let Some(interval) = interval.or(intervals.first()).copied().or_else(|| "1m".parse().ok()) else {
        return (StatusCode::NOT_FOUND, "there are no candles of this interval\n").into_response();
    };
    if of.symbol.is_empty() || of.symbol.len() > MAX_SYMBOL {
        return (StatusCode::BAD_REQUEST, "this is no symbol\n").into_response();
    }
    let feed = {
        let mut feeds = shared.symbols();
        let key = SymbolKey { symbol: of.symbol, interval };
        if feeds.len() >= MOST_SYMBOLS && !feeds.contains_key(&key) {
            return busy();
        }
        Arc::clone(feeds.entry(key).or_insert_with(|| Arc::new(Feed::new(shared.readers.clone()))))
    };
    events(&shared, feed, of.last.as_deref(), &headers)
}

fn events(shared: &Shared, feed: Arc<Feed>, last: Option<&str>, headers: &HeaderMap) -> Response {
    if *shared.readers.borrow() >= MOST_READERS || *shared.closed.borrow() {
        return busy();
    }
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let stream = feed.read(header.or(last));
    // no-transform, and the header nginx knows: a proxy that gathers events would hold them back.
    let headers = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        (CACHE_CONTROL.as_str(), "no-store, no-transform"),
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

fn busy() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "too many pages look at this process; open it at another worker\n")
        .into_response()
}

/// What a name starts with or holds.
#[derive(Debug, Deserialize)]
pub(super) struct Search {
    q: String,
}

/// Known symbols, those that start like the question first.
pub(super) async fn search(State(shared): State<Arc<Shared>>, Query(search): Query<Search>) -> Response {
    let wanted = search.q.to_lowercase();
    let names = shared.names();
    let mut found: Vec<&String> = names.iter().filter(|name| name.to_lowercase().contains(&wanted)).collect();
    found.sort_by_key(|name| (!name.to_lowercase().starts_with(&wanted), *name));
    found.truncate(MOST_NAMES);
    Json(found).into_response()
}

/// A rule as the page sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleBody {
    symbol: String,
    id: String,
    trigger: String,
    op: String,
    threshold: String,
    #[serde(default)]
    once: bool,
    /// As people write it: `5m`.
    cooldown: Option<String>,
    /// ms since the epoch; kept as it is when a rule is changed.
    expires: Option<i64>,
    note: Option<String>,
}

impl RuleBody {
    fn rule(self) -> anyhow::Result<Rule> {
        let trigger: Trigger = self.trigger.parse()?;
        let op: Op = self.op.parse().map_err(|_| anyhow::anyhow!("{:?} is no operator: < <= = >= >", self.op))?;
        let text = self.cooldown.filter(|text| !text.is_empty());
        let cooldown = text.map(|text| {
            let read = humantime::parse_duration(&text);
            read.ok()
                .and_then(|length| i64::try_from(length.as_millis()).ok())
                .with_context(|| format!("{text:?} is no duration: write one such as 90s, 5m or 24h"))
        });
        let options = RuleOptions {
            once: self.once,
            cooldown: cooldown.transpose()?,
            expires: self.expires,
            note: self.note.filter(|note| !note.is_empty()),
        };
        let rule = Rule {
            symbol: self.symbol,
            trigger,
            op,
            threshold: parse_threshold(&self.threshold)?,
            id: self.id,
            options,
        };
        rule.validate()?;
        Ok(rule)
    }
}

/// Adds or changes a rule.
pub(super) async fn put_rule(State(shared): State<Arc<Shared>>, body: extract::Json<RuleBody>) -> Response {
    if let Some(refusal) = read_only(&shared) {
        return refusal;
    }
    let rule = match body.0.rule() {
        Ok(rule) => rule,
        Err(error) => return (StatusCode::UNPROCESSABLE_ENTITY, format!("{error:#}\n")).into_response(),
    };
    let written = async {
        let mut conn = shared.pool.get().await?;
        let before = rules::put(&mut conn, &shared.keys, &rule).await?;
        Ok((before.rules.is_empty(), rules::replicate(&mut conn).await?))
    };
    answer(
        &shared,
        &rule.symbol,
        written.await.map(|(new, replication)| (if new { "added" } else { "changed" }, replication)),
    )
}

/// Which rule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleName {
    symbol: String,
    id: String,
}

/// Removes a rule.
pub(super) async fn remove_rule(State(shared): State<Arc<Shared>>, body: extract::Json<RuleName>) -> Response {
    if let Some(refusal) = read_only(&shared) {
        return refusal;
    }
    let RuleName { symbol, id } = body.0;
    let removed = async {
        let mut conn = shared.pool.get().await?;
        let before = rules::remove(&mut conn, &shared.keys, &symbol, &id).await?;
        Ok((before.rules.is_empty(), rules::replicate(&mut conn).await?))
    };
    match removed.await {
        Ok((true, _)) => (StatusCode::NOT_FOUND, format!("{symbol} has no rule {id:?}\n")).into_response(),
        outcome => answer(&shared, &symbol, outcome.map(|(_, replication)| ("removed", replication))),
    }
}

fn read_only(shared: &Shared) -> Option<Response> {
    let refusal =
        "this page is read-only: run the command, or start with --allow-writes ([dashboard] allow_writes)";
    (!shared.config.dashboard.allow_writes).then(|| refuse(refusal))
}

fn answer(shared: &Shared, symbol: &str, outcome: anyhow::Result<(&str, Replication)>) -> Response {
    match outcome {
        Ok((what, replication)) => {
            tracing::info!(symbol, "a rule was {what} on the page");
            shared.changed_rules().insert(symbol.to_owned());
            let confirmed = replication != Replication::Unconfirmed;
            Json(json!({ "done": what, "replicated": confirmed })).into_response()
        }
        Err(error) => {
            tracing::warn!(symbol, "a rule could not be written from the page: {error:#}");
            (StatusCode::BAD_GATEWAY, format!("Redis did not take it: {error:#}\n")).into_response()
        }
    }
}
