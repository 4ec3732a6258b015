//! Rules as users see them: put, remove, list. Workers read the same keys from Lua.
//!
//! A rule is one member of a sorted set, so plain redis-cli does as well; what is written by hand and does not
//! parse is listed with the reason.

mod model;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script};

use super::keys::{Keys, decode_symbol, encode_symbol};
use super::scan;
use crate::domain::{Op, Price};
pub use model::{
    MAX_ID, MAX_INTEGER, MAX_NOTE, Rule, RuleError, RuleOptions, RuleSet, SkipReason, Skipped, parse_threshold,
};

/// Rules written, or keys asked about, in one round trip.
const CHUNK: usize = 500;
/// How long a write waits for a replica, ms.
const REPLICA_WAIT: u64 = 1_000;

static PUT_RULE: LazyLock<Script> = LazyLock::new(|| Script::new(PUT_RULE_CODE));
const PUT_RULE_CODE: &str = include_str!("../../lua/put_rule.lua");

/// What an id was before it was written or removed; nothing if it was new.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Before {
    /// The rules it named; more than one only if written by hand.
    pub rules: Vec<StoredRule>,
    /// Its options.
    pub options: RuleOptions,
}

/// A rule of a known symbol and id as it stood in Redis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredRule {
    /// The set it was in.
    pub set: RuleSet,
    /// Its op.
    pub op: Op,
    /// Its score; not a price if it was written by hand.
    pub threshold: f64,
}

/// `edge >= 9400`
impl std::fmt::Display for StoredRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ", self.set.trigger(), self.op)?;
        match Price::from_f64(self.threshold) {
            Some(price) => write!(f, "{price}"),
            None => write!(f, "{}", self.threshold),
        }
    }
}

impl Before {
    /// Whether it was exactly this rule.
    pub fn is(&self, rule: &Rule) -> bool {
        let [StoredRule { set, op, threshold }] = self.rules[..] else {
            return false;
        };
        set == rule.set()
            && op == rule.op
            && threshold.total_cmp(&rule.threshold.to_f64()).is_eq()
            && self.options == rule.options
    }
}

/// Whether a write is safe from the loss of the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// There is no replica to wait for.
    NoReplica,
    /// A replica has it.
    Confirmed,
    /// There are replicas and none confirmed in time.
    Unconfirmed,
}

/// What stands under `rules:` in the namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The rules, by symbol, set, threshold, op and id.
    pub rules: Vec<Rule>,
    /// What no worker will fire.
    pub skipped: Vec<Skipped>,
}

/// Makes `rule.id` of `rule.symbol` this one rule, in one atomic step, and says what it was before.
pub async fn put(conn: &mut MultiplexedConnection, keys: &Keys, rule: &Rule) -> Result<Before> {
    let mut before = put_all(conn, keys, std::slice::from_ref(rule), |_| ()).await?;
    before.pop().context("Redis gave no answer to the rule")
}

/// [`put`] for many rules, each atomic, in round trips of a few hundred. Nothing is written unless all are valid.
/// `progress` is told how many more were written.
pub async fn put_all(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    rules: &[Rule],
    progress: impl Fn(u64),
) -> Result<Vec<Before>> {
    for rule in rules {
        rule.validate().with_context(|| format!("rule {rule}"))?;
    }
    let mut before = Vec::with_capacity(rules.len());
    for chunk in rules.chunks(CHUNK) {
        let calls = chunk.iter().map(|rule| Call::put(keys, rule));
        before.extend(run(conn, calls).await.with_context(|| {
            format!("writing {} rules from {} on: some may be written, apply again", chunk.len(), chunk[0])
        })?);
        progress(chunk.len() as u64);
    }
    Ok(before)
}

/// Removes an id of a symbol with its options, and says what it was.
pub async fn remove(conn: &mut MultiplexedConnection, keys: &Keys, symbol: &str, id: &str) -> Result<Before> {
    let mut before = remove_all(conn, keys, &[(symbol, id)], |_| ()).await?;
    before.pop().context("Redis gave no answer to the removal")
}

/// [`remove`] for many `(symbol, id)`.
pub async fn remove_all(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    ids: &[(&str, &str)],
    progress: impl Fn(u64),
) -> Result<Vec<Before>> {
    let mut before = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(CHUNK) {
        let calls = chunk.iter().map(|(symbol, id)| Call::remove(keys, symbol, id));
        before.extend(run(conn, calls).await.context("removing rules: some may be removed, try again")?);
        progress(chunk.len() as u64);
    }
    Ok(before)
}

/// Waits until a replica has what this connection wrote, where there is one.
pub async fn replicate(conn: &mut MultiplexedConnection) -> Result<Replication> {
    let info: String =
        redis::cmd("INFO").arg("replication").query_async(conn).await.context("asking Redis for its replicas")?;
    let replicas = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
    if replicas.is_none_or(|n| n.trim() == "0") {
        return Ok(Replication::NoReplica);
    }
    let confirmed: u64 =
        redis::cmd("WAIT").arg(1).arg(REPLICA_WAIT).query_async(conn).await.context("waiting for a replica")?;
    Ok(if confirmed > 0 { Replication::Confirmed } else { Replication::Unconfirmed })
}

/// One call of `put_rule.lua`.
struct Call {
    keys: Vec<String>,
    args: [String; 7],
}

impl Call {
    fn put(keys: &Keys, rule: &Rule) -> Call {
        let Rule { symbol, trigger: _, op, threshold, id, options } = rule;
        let cooldown = if options.cooldown.is_some() { "cooldown" } else { "" };
        Call::new(
            keys,
            symbol,
            [
                id.clone(),
                (rule.set() as usize + 1).to_string(),
                op.to_string(),
                threshold.to_string(),
                options.to_json().unwrap_or_default(),
                cooldown.to_owned(),
                encode_symbol(symbol).into_owned(),
            ],
        )
    }

    fn remove(keys: &Keys, symbol: &str, id: &str) -> Call {
        let mut args: [String; 7] = Default::default();
        id.clone_into(&mut args[0]);
        Call::new(keys, symbol, args)
    }

    fn new(keys: &Keys, symbol: &str, args: [String; 7]) -> Call {
        let sets = RuleSet::ALL.iter().map(|set| set.key(keys, symbol));
        let others = [keys.rule_options(symbol), keys.fired(symbol), keys.symbols()];
        Call { keys: sets.chain(others).collect(), args }
    }
}

/// Runs calls in one round trip. The script is loaded in front: a pipeline cannot come back to load it.
async fn run(conn: &mut MultiplexedConnection, calls: impl Iterator<Item = Call>) -> Result<Vec<Before>> {
    let mut pipe = redis::pipe();
    pipe.cmd("SCRIPT").arg("LOAD").arg(PUT_RULE_CODE).ignore();
    for call in calls {
        pipe.cmd("EVALSHA").arg(PUT_RULE.get_hash()).arg(call.keys.len()).arg(call.keys).arg(&call.args[..]);
    }
    let replies: Vec<Vec<Vec<u8>>> = pipe.query_async(conn).await?;
    replies.iter().map(|reply| before(reply).context("put_rule.lua answered something else")).collect()
}

/// Decodes `{options, set, op, threshold, …}`.
fn before(reply: &[Vec<u8>]) -> Option<Before> {
    let (options, rules) = reply.split_first()?;
    let rules = rules.chunks(3).map(|rule| {
        let [set, op, threshold] = rule else { return None };
        let set: usize = std::str::from_utf8(set).ok()?.parse().ok()?;
        Some(StoredRule {
            set: *RuleSet::ALL.get(set.checked_sub(1)?)?,
            op: std::str::from_utf8(op).ok()?.parse().ok()?,
            threshold: std::str::from_utf8(threshold).ok()?.parse().ok()?,
        })
    });
    // Options that do not parse were not those of any rule that can be written: none is as good.
    Some(Before {
        rules: rules.collect::<Option<_>>()?,
        options: RuleOptions::from_json(options).unwrap_or_default(),
    })
}

/// The rules of a symbol that are nearest to a price.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Near {
    /// How many members its sets have, those that do not parse too.
    pub total: u64,
    /// The nearest first, each with the event time of its last firing, ms, if it has a cooldown and fired.
    pub rules: Vec<(Rule, Option<i64>)>,
}

/// Members of a sorted set with their scores.
type Scored = Vec<(Vec<u8>, f64)>;

/// Reads at most `most` rules of a symbol, the nearest to `price`; without one, from the lowest threshold on. What
/// does not parse is left out. Needs no more rights than a worker has, and holds Redis up for no longer with a million
/// rules than with a few.
pub async fn near(
    conn: &mut MultiplexedConnection,
    keys: &Keys,
    symbol: &str,
    price: Option<f64>,
    most: usize,
) -> Result<Near> {
    let context = || format!("reading rules of {symbol}");
    let mut pipe = redis::pipe();
    for set in RuleSet::ALL {
        let key = set.key(keys, symbol);
        pipe.cmd("ZCARD").arg(&key);
        let price = price.unwrap_or(f64::NEG_INFINITY);
        let range = |pipe: &mut Pipeline, from: String, to: &str, order: &[&str]| {
            pipe.cmd("ZRANGE").arg(&key).arg(from).arg(to).arg("BYSCORE").arg(order);
            pipe.arg("LIMIT").arg(0).arg(most).arg("WITHSCORES");
        };
        range(&mut pipe, price.to_string(), "+inf", &[]);
        range(&mut pipe, format!("({price}"), "-inf", &["REV"]);
    }
    let answers: Vec<(u64, Scored, Scored)> = {
        let values: Vec<redis::Value> = pipe.query_async(conn).await.with_context(context)?;
        let of_sets = values.chunks(3).map(|of_set| redis::from_redis_value(redis::Value::Array(of_set.to_vec())));
        of_sets.collect::<Result<_, _>>().with_context(context)?
    };
    let total = answers.iter().map(|(count, ..)| count).sum();
    let mut found: Vec<(RuleSet, Vec<u8>, f64)> = Vec::new();
    for (set, (_, above, below)) in RuleSet::ALL.into_iter().zip(answers) {
        found.extend(above.into_iter().chain(below).map(|(member, score)| (set, member, score)));
    }
    let away = |score: f64| price.map_or(score, |price| (score - price).abs());
    found.sort_by(|a, b| away(a.2).total_cmp(&away(b.2)).then_with(|| a.1.cmp(&b.1)));
    found.truncate(most);
    let ids: Vec<&[u8]> = found.iter().map(|(_, member, _)| id_of(member)).collect();
    if ids.is_empty() {
        return Ok(Near { total, rules: Vec::new() });
    }
    let mut pipe = redis::pipe();
    pipe.cmd("HMGET").arg(keys.rule_options(symbol)).arg(&ids).cmd("HMGET").arg(keys.fired(symbol)).arg(&ids);
    let (options, fired): (Vec<Option<Vec<u8>>>, Vec<Option<String>>) =
        pipe.query_async(conn).await.with_context(context)?;
    let rules =
        found.iter().zip(options.iter().zip(fired)).filter_map(|((set, member, score), (options, fired))| {
            let rule = Rule::from_redis(symbol, *set, member, *score, |_| options.as_deref()).ok()?;
            Some((rule, fired.and_then(|at| at.parse().ok())))
        });
    Ok(Near { total, rules: rules.collect() })
}

/// What follows the first space of a member.
fn id_of(member: &[u8]) -> &[u8] {
    let space = member.iter().position(|byte| *byte == b' ');
    space.map_or(member, |space| &member[space + 1..])
}

/// What stands under `rules:` for some symbols.
pub async fn list(conn: &mut MultiplexedConnection, keys: &Keys, symbols: &[&str]) -> Result<Listing> {
    let mut names = BTreeSet::new();
    for symbol in symbols {
        names.extend(RuleSet::ALL.iter().map(|set| set.key(keys, symbol)));
        names.insert(keys.rule_options(symbol));
        names.insert(keys.level_rules(symbol, "").trim_end_matches(':').to_owned());
    }
    read(conn, keys, names.into_iter().collect()).await
}

/// What stands under `rules:` for all symbols.
///
/// Found by SCAN alone: the set of symbols knows only those that ticked or were put through [`put`], and a key
/// made by hand is as good.
pub async fn list_all(conn: &mut MultiplexedConnection, keys: &Keys) -> Result<Listing> {
    let pattern = format!("{}rules:*", scan::glob_escape(keys.namespace()));
    let names = scan::keys(conn, &pattern).await.context("listing rules")?;
    read(conn, keys, names).await
}

/// What a key under `rules:` is.
enum RuleKey {
    Set(String, RuleSet),
    Options(String),
    Skipped(Option<String>, SkipReason),
}

impl RuleKey {
    /// Parses a key's name from the right, since a symbol may hold anything, colons too.
    fn parse(keys: &Keys, name: &str) -> RuleKey {
        let Some(rest) = name.strip_prefix(keys.namespace()).and_then(|rest| rest.strip_prefix("rules:")) else {
            return RuleKey::Skipped(None, SkipReason::UnknownKey);
        };
        let symbol = |suffix: &str| {
            rest.strip_suffix(suffix).filter(|s| !s.is_empty()).map(|s| decode_symbol(s).into_owned())
        };
        let found = RuleSet::ALL.into_iter().find_map(|set| symbol(set.suffix()).map(|s| RuleKey::Set(s, set)));
        let found = found.or_else(|| symbol(":opts").map(RuleKey::Options));
        let expected = match &found {
            Some(RuleKey::Set(symbol, set)) => set.key(keys, symbol),
            Some(RuleKey::Options(symbol)) => keys.rule_options(symbol),
            _ => name.to_owned(),
        };
        match found {
            Some(RuleKey::Set(symbol, _) | RuleKey::Options(symbol)) if expected != name => {
                RuleKey::Skipped(Some(symbol), SkipReason::Misnamed(expected))
            }
            Some(found) => found,
            None => match symbol(":level") {
                Some(symbol) => RuleKey::Skipped(Some(symbol), SkipReason::NoDirection),
                None => RuleKey::Skipped(None, SkipReason::UnknownKey),
            },
        }
    }
}

async fn read(conn: &mut MultiplexedConnection, keys: &Keys, names: Vec<String>) -> Result<Listing> {
    let types = types_of(conn, &names).await.context("reading the types of rule keys")?;
    let mut listing = Listing::default();
    let (mut sets, mut options) = (Vec::new(), Vec::new());
    for (name, found) in names.into_iter().zip(types) {
        if found == "none" {
            continue;
        }
        let key = RuleKey::parse(keys, &name);
        let expected = if matches!(key, RuleKey::Options(_)) { "hash" } else { "zset" };
        match key {
            RuleKey::Skipped(symbol, reason) => listing.skip_key(name, symbol, reason),
            RuleKey::Set(symbol, _) | RuleKey::Options(symbol) if found != expected => {
                listing.skip_key(name, Some(symbol), SkipReason::WrongType { found, expected });
            }
            RuleKey::Set(symbol, set) => sets.push((name, symbol, set)),
            RuleKey::Options(symbol) => options.push((name, symbol)),
        }
    }
    let names: Vec<&str> = options.iter().map(|(name, _)| name.as_str()).collect();
    let values = scan_members(conn, "HSCAN", &names).await.context("reading options of rules")?;
    let options: HashMap<&str, _> = options.iter().map(|(_, symbol)| symbol.as_str()).zip(values).collect();
    let names: Vec<&str> = sets.iter().map(|(name, ..)| name.as_str()).collect();
    let members = scan_members(conn, "ZSCAN", &names).await.context("reading rules")?;
    let none = Members::new();
    for ((name, symbol, set), members) in sets.iter().zip(members) {
        let options = options.get(symbol.as_str()).unwrap_or(&none);
        for (member, score) in members {
            listing.add(name, symbol, *set, &member, &score, options);
        }
    }
    listing.rules.sort_by(|a, b| {
        let by_set = (&a.symbol, a.set()).cmp(&(&b.symbol, b.set()));
        let by_threshold = a.threshold.to_f64().total_cmp(&b.threshold.to_f64());
        by_set.then(by_threshold).then_with(|| (a.op, &a.id).cmp(&(b.op, &b.id)))
    });
    listing.skipped.sort_by(|a, b| (&a.key, &a.member).cmp(&(&b.key, &b.member)));
    Ok(listing)
}

impl Listing {
    fn skip_key(&mut self, key: String, symbol: Option<String>, reason: SkipReason) {
        self.skipped.push(Skipped { key, symbol, member: None, score: None, reason });
    }

    /// Adds one member of one set, as a rule or as skipped.
    fn add(&mut self, key: &str, symbol: &str, set: RuleSet, member: &[u8], score: &[u8], options: &Members) {
        let score: f64 = std::str::from_utf8(score).ok().and_then(|s| s.parse().ok()).unwrap_or(f64::NAN);
        let options = |id: &str| options.get(id.as_bytes()).map(Vec::as_slice);
        match Rule::from_redis(symbol, set, member, score, options) {
            Ok(rule) => self.rules.push(rule),
            Err(reason) => self.skipped.push(Skipped {
                key: key.to_owned(),
                symbol: Some(symbol.to_owned()),
                member: Some(String::from_utf8_lossy(member).into_owned()),
                score: Some(score),
                reason,
            }),
        }
    }
}

/// A member with its score, or a field with its value.
type Pair = (Vec<u8>, Vec<u8>);
/// All of a set, or of a hash.
type Members = BTreeMap<Vec<u8>, Vec<u8>>;

async fn types_of(conn: &mut MultiplexedConnection, names: &[String]) -> Result<Vec<String>> {
    let mut types = Vec::with_capacity(names.len());
    for chunk in names.chunks(CHUNK) {
        let mut pipe = Pipeline::with_capacity(chunk.len());
        for name in chunk {
            pipe.cmd("TYPE").arg(name);
        }
        types.extend(pipe.query_async::<Vec<String>>(conn).await?);
    }
    Ok(types)
}

/// Reads many sets or hashes in full, in pages: a million rules on one symbol never hold Redis up.
async fn scan_members(conn: &mut MultiplexedConnection, command: &str, names: &[&str]) -> Result<Vec<Members>> {
    let mut members = vec![Members::new(); names.len()];
    let mut pending: Vec<(usize, u64)> = (0..names.len()).map(|i| (i, 0)).collect();
    while !pending.is_empty() {
        let page = pending.split_off(pending.len().saturating_sub(CHUNK));
        let mut pipe = Pipeline::with_capacity(page.len());
        for (i, cursor) in &page {
            pipe.cmd(command).arg(names[*i]).arg(cursor).arg("COUNT").arg(1_000);
        }
        let replies: Vec<(u64, Vec<Pair>)> = pipe.query_async(conn).await?;
        for ((i, _), (cursor, found)) in page.into_iter().zip(replies) {
            members[i].extend(found);
            if cursor != 0 {
                pending.push((i, cursor));
            }
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> RuleKey {
        RuleKey::parse(&Keys::new("tw:"), name)
    }

    #[test]
    fn names_are_parsed_from_the_right() {
        for symbol in ["BBCA", "BTC/USDT:USDT", "a:level", "a:level:above", "a:edge", "A B"] {
            for set in RuleSet::ALL {
                let name = set.key(&Keys::new("tw:"), symbol);
                assert!(matches!(parse(&name), RuleKey::Set(s, found) if s == symbol && found == set), "{name}");
            }
        }
    }

    #[test]
    fn keys_no_worker_reads_are_told_apart() {
        let reason = |name: &str| match parse(name) {
            RuleKey::Skipped(_, reason) => reason,
            _ => panic!("{name} is read"),
        };
        assert_eq!(reason("tw:rules:BBCA:level"), SkipReason::NoDirection);
        for name in ["tw:rules:BBCA", "tw:rules:BBCA:level:sideways", "tw:rules::edge", "tw:rules::level"] {
            assert_eq!(reason(name), SkipReason::UnknownKey, "{name}");
        }
        assert_eq!(reason("tw:rules:A B:edge"), SkipReason::Misnamed("tw:rules:A%20B:edge".into()));
    }
}
