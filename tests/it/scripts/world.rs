//! Redis and the reference side by side: each step is done to both, then all of both is compared.

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;
use redis::{Commands as _, Connection};
use tickwatch::config::RedisConfig;
use tickwatch::domain::reference::{self, Reference, RuleOptions, RuleSet, Symbol};
use tickwatch::domain::{Batch, Entry, Interval, Offset, OutboxId, Position, SourcePartition, Watermark};
use tickwatch::store::connection;
use tickwatch::store::keys::encode_symbol;
use tickwatch::store::scripts::{self, Advanced, Claim, Claimed, Closed, Guard, Scripts, State, Token, Updated};
use tickwatch::store::{Keys, StoreError};

use super::dump;
use crate::common::rules;
use crate::harness::{Stage, connect};

/// How long closed candles stay, ms: longer than any test.
const EXPIRY: i64 = 3_600_000;

/// The consumer group of every claim.
pub(super) const GROUP: &str = "group";

/// A namespace of its own on a Redis, and what should be in it. Its partitions share their symbols.
pub(super) struct World<'a> {
    stage: &'a Stage,
    conn: MultiplexedConnection,
    pub(super) redis: Connection,
    pub(super) scripts: Scripts,
    pub(super) sides: Vec<Side>,
    pub(super) symbols: BTreeMap<Box<str>, Symbol>,
    page: usize,
    tokens: u128,
}

/// One source partition.
pub(super) struct Side {
    pub(super) partition: SourcePartition,
    pub(super) token: Token,
    pub(super) reference: Reference,
}

/// Bounds of a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) max_outputs: usize,
    pub(super) max_matches: usize,
    pub(super) page: usize,
    /// Open candles are sent at most so often, ms.
    pub(super) updates: Option<i64>,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { max_outputs: 10_000, max_matches: 10_000, page: 5_000, updates: None }
    }
}

/// What `tw:rules:<SYM>:opts` says of a rule.
#[derive(Debug, Clone)]
pub(super) enum Options {
    None,
    Good(RuleOptions),
    /// Text that does not parse.
    Bad(&'static str),
}

impl<'a> World<'a> {
    /// A new namespace on the stage's Redis, with `partitions` claimed at offset 0.
    pub(super) fn new(stage: &'a Stage, intervals: &[Interval], bounds: Bounds, partitions: i32) -> World<'a> {
        World::at(stage, stage.redis_url(), intervals, bounds, partitions)
    }

    /// The same on any Redis.
    pub(super) fn at(
        stage: &'a Stage,
        url: &str,
        intervals: &[Interval],
        bounds: Bounds,
        partitions: i32,
    ) -> World<'a> {
        let config = RedisConfig { url: url.to_owned(), ..RedisConfig::default() };
        let conn = stage.block_on(connection::connect(&config)).expect("Redis runs");
        let keys = Keys::new(format!("{}:", stage.unique("w")));
        let limits = scripts::Limits {
            max_outputs: bounds.max_outputs as u32,
            max_matches: bounds.max_matches as u32,
            page: bounds.page as u32,
            expiry: EXPIRY,
            updates: bounds.updates,
        };
        let mut world = World {
            stage,
            conn,
            redis: connect(url).expect("Redis runs"),
            scripts: Scripts::new(keys, intervals.to_vec(), limits),
            sides: Vec::new(),
            symbols: BTreeMap::new(),
            page: bounds.page,
            tokens: 0,
        };
        let Bounds { max_matches, max_outputs, page, updates } = bounds;
        let limits = reference::Limits { max_matches, max_outputs, page };
        for partition in 0..partitions {
            let mut reference = Reference::new(Offset(0), limits, encode_symbol);
            reference.updates = updates.is_some();
            let partition_ = SourcePartition { topic: "ticks".to_owned(), partition };
            world.sides.push(Side { partition: partition_, token: Token::new(0), reference });
            world.claim(partition as usize, None);
        }
        world
    }

    pub(super) fn keys(&self) -> &Keys {
        self.scripts.keys()
    }

    pub(super) fn position(&self, side: usize) -> Position {
        self.sides[side].reference.position
    }

    /// What the owner of a partition holds.
    pub(super) fn guard(&self, side: usize) -> Guard {
        let Side { token, reference, .. } = &self.sides[side];
        Guard { token: token.clone(), position: reference.position, tail: tail(reference) }
    }

    /// Runs one script call.
    pub(super) fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&Scripts, &mut MultiplexedConnection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.stage.block_on(call(&self.scripts, &mut self.conn))
    }

    fn with<T>(&mut self, side: usize, step: impl FnOnce(&mut Reference) -> T) -> T {
        let reference = &mut self.sides[side].reference;
        std::mem::swap(&mut reference.symbols, &mut self.symbols);
        let result = step(reference);
        std::mem::swap(&mut reference.symbols, &mut self.symbols);
        result
    }

    pub(super) fn claim_request(&mut self, start: Option<i64>, delivered: Option<Position>) -> Claim {
        self.tokens += 1;
        Claim {
            token: Token::new(self.tokens),
            owner: format!("owner-{}", self.tokens),
            group: GROUP.to_owned(),
            fingerprint: "f".to_owned(),
            start: start.map(Offset),
            reset: None,
            delivered,
        }
    }

    /// Takes a partition over.
    pub(super) fn claim(&mut self, side: usize, delivered: Option<Position>) -> State {
        let claim = self.claim_request(Some(0), delivered);
        let partition = self.sides[side].partition.clone();
        let answer = self.call(async |scripts, conn| scripts.claim(conn, &partition, &claim).await);
        let Ok(Claimed::Ok(state)) = answer else { panic!("{answer:?}") };
        self.sides[side].token = claim.token;
        self.with(side, |reference| {
            if let Some(position) = delivered {
                reference.drop_delivered(position);
            }
            assert_eq!(state.position, reference.position);
            assert_eq!(state.tail, tail(reference));
            assert_eq!(state.max_ts, reference.max_ts);
            assert_eq!(state.last_record, reference.last_record);
            assert_eq!(state.next_due, next_due(reference));
            assert_eq!(state.outbox, reference.outbox.len() as u64);
        });
        self.check();
        state
    }

    /// Applies a batch to both, which say the same: done with the same outputs, or refused for the same reason.
    pub(super) fn apply(&mut self, side: usize, batch: &Batch, single: bool) -> reference::Applied {
        let (partition, guard) = (self.sides[side].partition.clone(), self.guard(side));
        let answer = self.call(async |scripts, conn| scripts.apply(conn, &partition, &guard, batch, single).await);
        let before = self.sides[side].reference.totals;
        let expected = self.with(side, |reference| reference.apply(batch, single));
        match (answer.expect("the script runs"), &expected) {
            (scripts::Applied::Ok(effects), reference::Applied::Done(entries)) => {
                let reference = &self.sides[side].reference;
                assert_eq!(&effects.outputs, entries);
                assert_eq!(effects.tail, tail(reference));
                assert_eq!(effects.next_due, next_due(reference));
                assert_eq!(effects.out_of_order, reference.totals.out_of_order - before.out_of_order);
                assert_eq!(effects.refused_matches, reference.totals.refused - before.refused);
                assert_eq!(effects.poisoned, Vec::<String>::new());
                assert_eq!(effects.lost, Vec::<String>::new());
            }
            (scripts::Applied::Due, reference::Applied::Due)
            | (scripts::Applied::Split, reference::Applied::Split) => {}
            (answer, expected) => panic!("the script says {answer:?}, the reference {expected:?}"),
        }
        self.check();
        expected
    }

    /// Raises the watermark, not bounded by a clock.
    pub(super) fn advance(&mut self, side: usize, to: Watermark) {
        let (partition, guard) = (self.sides[side].partition.clone(), self.guard(side));
        let answer = self.call(async |scripts, conn| scripts.advance(conn, &partition, &guard, to, None).await);
        self.with(side, |reference| {
            reference.advance(to);
            let expected = Advanced::Ok { watermark: reference.position.watermark, next_due: next_due(reference) };
            assert_eq!(answer.expect("the script runs"), expected);
        });
        self.check();
    }

    /// Seals one page; whether more is due, and the candles.
    pub(super) fn close_page(&mut self, side: usize) -> (bool, Vec<Entry>) {
        let (partition, guard) = (self.sides[side].partition.clone(), self.guard(side));
        let answer = self.call(async |scripts, conn| scripts.close(conn, &partition, &guard).await);
        let page = self.page;
        let expected = self.with(side, |reference| reference.close(page));
        let reference = &self.sides[side].reference;
        assert_eq!(
            answer.expect("the script runs"),
            Closed::Ok {
                more: expected.more,
                outputs: expected.entries.clone(),
                tail: tail(reference),
                next_due: next_due(reference),
                lost: Vec::new(),
            }
        );
        self.check();
        (expected.more, expected.entries)
    }

    /// Sends a page of updates, at once: the interval has to be 0. Whether the wave goes on, and the candles.
    pub(super) fn update(&mut self, side: usize) -> (bool, Vec<Entry>) {
        let (partition, guard) = (self.sides[side].partition.clone(), self.guard(side));
        let answer = self.call(async |scripts, conn| scripts.update(conn, &partition, &guard).await);
        let page = self.page.min(1_000);
        let expected = self.with(side, |reference| reference.update(page));
        let reference = &self.sides[side].reference;
        assert_eq!(
            answer.expect("the script runs"),
            Updated::Ok {
                more: expected.more,
                outputs: expected.entries.clone(),
                tail: tail(reference),
                left: reference.changed.len() as u64,
            }
        );
        self.check();
        (expected.more, expected.entries)
    }

    /// Seals all that is due.
    pub(super) fn close(&mut self, side: usize) -> Vec<Entry> {
        let mut closed = Vec::new();
        loop {
            let (more, entries) = self.close_page(side);
            closed.extend(entries);
            if !more {
                return closed;
            }
        }
    }

    /// Drops the outbox up to and including an entry.
    pub(super) fn trim(&mut self, side: usize, through: OutboxId) {
        let (partition, token) = (self.sides[side].partition.clone(), self.sides[side].token.clone());
        let answer = self.call(async |scripts, conn| scripts.trim(conn, &partition, &token, through).await);
        assert!(answer.expect("the script runs"), "the owner is not fenced");
        self.with(side, |reference| reference.trim(OutboxId { n: through.n + 1, ..through }));
        self.check();
    }

    /// Adds or changes a rule as a user does, with plain commands. `set`: `edge` or `level:<direction>`.
    pub(super) fn put_rule(&mut self, symbol: &str, set: &str, member: &str, threshold: f64, options: &Options) {
        let name = self.rules_key(symbol, set);
        let _: () = self.redis.zadd(name, member, threshold).expect("ZADD answers");
        let id = member.split_once(' ').map_or(member, |(_, id)| id).to_owned();
        let opts = self.keys().rule_options(symbol);
        let rules = &mut self.symbols.entry(symbol.into()).or_default().rules;
        of_set(rules, set).insert(member.to_owned(), threshold);
        let (text, parsed) = match options {
            Options::None => return,
            Options::Good(options) => (to_json(options), Some(options.clone())),
            Options::Bad(text) => ((*text).to_owned(), None),
        };
        rules.options.insert(id.clone(), parsed);
        let _: () = self.redis.hset(opts, id, text).expect("HSET answers");
    }

    /// Takes a rule away with plain commands, its options with it.
    pub(super) fn remove_rule(&mut self, symbol: &str, set: &str, member: &str) {
        let id = member.split_once(' ').map_or(member, |(_, id)| id);
        let (name, opts) = (self.rules_key(symbol, set), self.keys().rule_options(symbol));
        let _: () = self.redis.zrem(name, member).expect("ZREM answers");
        let _: () = self.redis.hdel(opts, id).expect("HDEL answers");
        let rules = &mut self.symbols.entry(symbol.into()).or_default().rules;
        of_set(rules, set).remove(member);
        rules.options.remove(id);
    }

    fn rules_key(&self, symbol: &str, set: &str) -> String {
        match set.strip_prefix("level:") {
            Some(direction) => self.keys().level_rules(symbol, direction),
            None => self.keys().edge_rules(symbol),
        }
    }

    /// Makes Redis forget the scripts, as a restart does.
    pub(super) fn forget_scripts(&mut self) {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut self.redis).expect("SCRIPT FLUSH answers");
    }

    /// Everything in Redis is as the reference says.
    pub(super) fn check(&mut self) {
        let keys = self.keys().clone();
        let found = dump::found(&mut self.redis, &keys);
        let sides = self.sides.iter().map(|side| (&side.partition, &side.reference));
        dump::assert_same(&found, &dump::expected(sides, &self.symbols));
        for side in 0..self.sides.len() {
            let expected: Vec<Entry> = self.sides[side].reference.outbox.iter().cloned().collect();
            assert_eq!(self.outbox(side), expected, "the outbox of partition {side}");
        }
    }

    /// The outbox as it is in Redis.
    pub(super) fn outbox(&mut self, side: usize) -> Vec<Entry> {
        let partition = self.sides[side].partition.clone();
        self.call(async |scripts, conn| scripts.read_outbox(conn, &partition, None, 1_000_000).await)
            .expect("XRANGE answers")
    }

    /// Every key, byte for byte.
    pub(super) fn bytes(&mut self) -> BTreeMap<String, Vec<u8>> {
        let keys = self.keys().clone();
        dump::bytes(&mut self.redis, &keys)
    }
}

pub(super) fn tail(reference: &Reference) -> OutboxId {
    reference.tail.unwrap_or(OutboxId { offset: Offset(0), n: 0 })
}

fn next_due(reference: &Reference) -> Option<i64> {
    reference.due.first().map(|due| due.end)
}

fn of_set<'r>(rules: &'r mut reference::Rules, set: &str) -> &'r mut RuleSet {
    match set {
        "edge" => &mut rules.edge,
        "level:above" => &mut rules.above,
        "level:below" => &mut rules.below,
        "level:equal" => &mut rules.equal,
        other => panic!("there is no set {other}"),
    }
}

fn to_json(options: &RuleOptions) -> String {
    let RuleOptions { once, cooldown, expires, note } = options;
    serde_json::Value::Object(rules::options(*once, *cooldown, *expires, note.as_deref())).to_string()
}
