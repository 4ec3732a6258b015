//! The atomic scripts of `lua/`, one typed call each.
//!
//! A call goes out as EVALSHA; a server that lost its scripts (SCRIPT FLUSH, restart) is given the source once.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, Value};

use super::error::StoreError;
use super::keys::{Keys, encode_symbol};
use super::pack::Packer;
use super::reply::{Reply, parse_entries};
use crate::domain::{
    Batch, Entry, Extra, ExtraKind, Interval, Offset, OutboxId, Position, RecordMark, SourcePartition, Watermark,
};

const COMMON: &str = include_str!("../../lua/lib/common.lua");
const DECIMAL: &str = include_str!("../../lua/lib/decimal.lua");
const CANDLE: &str = include_str!("../../lua/lib/candle.lua");
const RULES: &str = include_str!("../../lua/lib/rules.lua");

/// Open candles sent by one `update` at most: a batch may wait for one page, and no longer.
const UPDATES_PAGE: u32 = 1_000;

fn script(parts: &[&str]) -> Script {
    Script::new(&parts.join("\n"))
}

static CLAIM: LazyLock<Script> = LazyLock::new(|| script(&[COMMON, include_str!("../../lua/claim.lua")]));
static APPLY: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, DECIMAL, CANDLE, RULES, include_str!("../../lua/apply.lua")]));
static ADVANCE: LazyLock<Script> = LazyLock::new(|| script(&[COMMON, include_str!("../../lua/advance.lua")]));
static CLOSE: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, DECIMAL, CANDLE, include_str!("../../lua/close.lua")]));
static UPDATE: LazyLock<Script> =
    LazyLock::new(|| script(&[COMMON, DECIMAL, CANDLE, include_str!("../../lua/update.lua")]));
static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| script(&[COMMON, include_str!("../../lua/heartbeat.lua")]));
static TRIM: LazyLock<Script> = LazyLock::new(|| script(&[COMMON, include_str!("../../lua/trim.lua")]));

static PROBE: LazyLock<Script> = LazyLock::new(|| script(&[include_str!("../../lua/probe.lua")]));

/// Names one owner of a source partition: 128 random bits in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token of 128 random bits.
    pub fn new(random: u128) -> Token {
        Token(format!("{random:032x}"))
    }
}

/// What a caller holds; a script refuses if Redis holds something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The caller's token: another one there means FENCED.
    pub token: Token,
    /// The state position: another one there means MOVED.
    pub position: Position,
    /// Id of the last outbox entry, the third coordinate: a Redis that lost outputs but not the position is told
    /// by it.
    pub tail: OutboxId,
}

/// Why a guarded call was refused. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another worker claimed the partition.
    Fenced,
    /// The state is not where the caller believes: claim again.
    Moved,
}

/// What a claim asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The new owner's token.
    pub token: Token,
    /// The new owner's name, for people.
    pub owner: String,
    /// The consumer group.
    pub group: String,
    /// Fingerprint of the settings that decide state.
    pub fingerprint: String,
    /// Where to start if there is no state.
    pub start: Option<Offset>,
    /// The topic was made again since this generation: delete what is pending and start a new one at `start`. If the
    /// generation is another by now, somebody has done so already.
    pub reset: Option<u64>,
    /// The delivered position; `None` if unknown. Entries of the outbox below it are dropped, unless the topic was ever
    /// made again: then it may be of the topic before.
    pub delivered: Option<Position>,
}

/// A claim's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The partition is the caller's.
    Ok(State),
    /// There is no state, and the claim named no start.
    Absent,
    /// The namespace belongs to another consumer group.
    OtherGroup(String),
}

/// The state of a source partition as found by a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Counts owners.
    pub epoch: u64,
    /// The state position.
    pub position: Position,
    /// Id of the last outbox entry.
    pub tail: OutboxId,
    /// Greatest event time applied, ms.
    pub max_ts: Option<i64>,
    /// How long ago that was applied, ms, by Redis's clock.
    pub max_ts_age: i64,
    /// The last applied record.
    pub last_record: Option<RecordMark>,
    /// Fingerprint of the settings of the owner before.
    pub fingerprint: String,
    /// Counts resets; 0 is left out of notification ids.
    pub generation: u64,
    /// End of the earliest open window, ms.
    pub next_due: Option<i64>,
    /// Entries in the outbox.
    pub outbox: u64,
    /// The owner before, for people.
    pub previous_owner: String,
}

/// The answer of `apply`.
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// The batch is applied.
    Ok(Effects),
    /// Nothing was done.
    Refused(Refusal),
    /// Open windows are at or below the watermark: close them first.
    Due,
    /// More outputs than one call may make: halve the batch.
    Split,
}

/// What applying a batch did.
#[derive(Debug, Clone, PartialEq)]
pub struct Effects {
    /// The outputs, as appended to the outbox: of the ticks, then the candles that were sealed.
    pub outputs: Vec<Entry>,
    /// Id of the last outbox entry now.
    pub tail: OutboxId,
    /// End of the earliest open window, ms.
    pub next_due: Option<i64>,
    /// Ticks older than their symbol's last.
    pub out_of_order: u64,
    /// Firings refused past `max_matches`.
    pub refused_matches: u64,
    /// `key member` of rules that do not parse.
    pub bad_rules: Vec<String>,
    /// `symbol: error` of symbols with a key that cannot be used.
    pub poisoned: Vec<String>,
    /// Keys that should have held a candle to seal and did not.
    pub lost: Vec<String>,
}

/// The answer of `advance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advanced {
    /// The watermark is this now.
    Ok {
        /// Raised or as it was.
        watermark: Watermark,
        /// End of the earliest open window, ms.
        next_due: Option<i64>,
    },
    /// Nothing was done.
    Refused(Refusal),
}

/// The answer of `close`.
#[derive(Debug, Clone, PartialEq)]
pub enum Closed {
    /// A page was sealed.
    Ok {
        /// Whether more windows are due.
        more: bool,
        /// The candles, as appended to the outbox.
        outputs: Vec<Entry>,
        /// Id of the last outbox entry now.
        tail: OutboxId,
        /// End of the earliest open window, ms.
        next_due: Option<i64>,
        /// Keys that should have held a candle and did not.
        lost: Vec<String>,
    },
    /// Nothing was done.
    Refused(Refusal),
}

/// The answer of `update`.
#[derive(Debug, Clone, PartialEq)]
pub enum Updated {
    /// A page was sent.
    Ok {
        /// Whether the wave goes on.
        more: bool,
        /// The candles, as appended to the outbox.
        outputs: Vec<Entry>,
        /// Id of the last outbox entry now.
        tail: OutboxId,
        /// Changed windows that are left, for this wave or the next.
        left: u64,
    },
    /// It is too early for a wave.
    Wait {
        /// By so many ms.
        ms: u64,
        /// Changed windows.
        left: u64,
    },
    /// Nothing was done.
    Refused(Refusal),
}

/// The answer of `heartbeat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// Still the owner, at the same position.
    Ok {
        /// Entries in the outbox.
        outbox: u64,
        /// Open windows.
        open_windows: u64,
    },
    /// Nothing was done.
    Refused(Refusal),
}

/// Bounds and settings the scripts need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Outputs of one `apply` at most; a single record is never cut.
    pub max_outputs: u32,
    /// Rules that one tick may fire at most.
    pub max_matches: u32,
    /// Windows sealed by one `close` or `apply` at most.
    pub page: u32,
    /// How long a closed candle stays, ms.
    pub expiry: i64,
    /// Open candles are sent, at most so often, ms; `None`: they are not.
    pub updates: Option<i64>,
}

/// The scripts for one namespace and one set of settings.
#[derive(Debug, Clone)]
pub struct Scripts {
    keys: Keys,
    intervals: Vec<Interval>,
    interval_names: String,
    limits: Limits,
}

impl Scripts {
    /// The scripts under `keys`, for candles of `intervals`.
    pub fn new(keys: Keys, intervals: Vec<Interval>, limits: Limits) -> Scripts {
        let interval_names = intervals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Scripts { keys, intervals, interval_names, limits }
    }

    /// The key names in use.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Takes a source partition over.
    pub async fn claim(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        claim: &Claim,
    ) -> Result<Claimed, StoreError> {
        let mut cmd = self.command(&CLAIM, partition, &claim.token);
        cmd.arg(&claim.owner).arg(&claim.group).arg(&claim.fingerprint);
        cmd.arg(claim.start.map(|offset| offset.0.to_string()).unwrap_or_default());
        cmd.arg(claim.reset.map(|generation| generation.to_string()).unwrap_or_default());
        match claim.delivered {
            Some(position) => cmd.arg(position.offset.0).arg(position.watermark.to_string()),
            None => cmd.arg("").arg(""),
        };
        cmd.arg(if claim.delivered.is_some_and(|delivered| delivered.updates) { "updates" } else { "" });
        cmd.arg(self.updates());
        let mut reply = call("claim", &CLAIM, conn, &cmd).await?;
        match reply.text()?.as_str() {
            "OK" => {
                let epoch = reply.whole()? as u64;
                let position = Position::at(Offset(reply.whole()?), reply.watermark()?);
                let tail = reply.outbox_id()?;
                let (max_ts, max_ts_at, now) = (reply.optional()?, reply.optional()?, reply.whole()?);
                Ok(Claimed::Ok(State {
                    epoch,
                    position,
                    tail,
                    max_ts,
                    max_ts_age: max_ts_at.map_or(0, |at| (now - at).max(0)),
                    last_record: reply.record_mark()?,
                    fingerprint: reply.text()?,
                    generation: reply.optional()?.unwrap_or(0) as u64,
                    next_due: reply.optional()?,
                    outbox: reply.whole()? as u64,
                    previous_owner: reply.text()?,
                }))
            }
            "ABSENT" => Ok(Claimed::Absent),
            "GROUP" => Ok(Claimed::OtherGroup(reply.text()?)),
            _ => Err(reply.malformed("OK, ABSENT or GROUP")),
        }
    }

    /// Applies a batch. `single`: it is one record and cannot be cut, so its outputs are not bounded.
    pub async fn apply(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        guard: &Guard,
        batch: &Batch,
        single: bool,
    ) -> Result<Applied, StoreError> {
        let cmd = self.apply_command(partition, guard, batch, single);
        let mut reply = call("apply", &APPLY, conn, &cmd).await?;
        match reply.text()?.as_str() {
            "OK" => Ok(Applied::Ok(Effects {
                outputs: reply.entries()?,
                tail: reply.outbox_id()?,
                next_due: reply.optional()?,
                out_of_order: reply.whole()? as u64,
                refused_matches: reply.whole()? as u64,
                bad_rules: reply.texts()?,
                poisoned: reply.texts()?,
                lost: reply.texts()?,
            })),
            "DUE" => Ok(Applied::Due),
            "SPLIT" => Ok(Applied::Split),
            word => {
                refusal(word).map(Applied::Refused).ok_or_else(|| reply.malformed("OK, DUE, SPLIT or a refusal"))
            }
        }
    }

    fn apply_command(&self, partition: &SourcePartition, guard: &Guard, batch: &Batch, single: bool) -> Cmd {
        let mut cmd = self.guarded(&APPLY, partition, guard);
        cmd.arg(batch.to.0).arg(batch.watermark_after.to_string());
        cmd.arg(batch.max_ts.map(|ts| ts.to_string()).unwrap_or_default());
        cmd.arg(batch.last_record.map(|mark| mark_text(&mark)).unwrap_or_default());
        cmd.arg(batch.counts.ticks).arg(batch.counts.late).arg(batch.counts.dead_letters);
        if single {
            cmd.arg("");
        } else {
            cmd.arg(self.limits.max_outputs);
        }
        cmd.arg(self.limits.max_matches).arg(self.limits.expiry).arg(&self.interval_names);
        cmd.arg(self.limits.page).arg(batch.extras.len()).arg(self.updates());
        for extra in &batch.extras {
            extra_args(&mut cmd, extra);
        }
        let mut packer = Packer::default();
        for symbol in &batch.symbols {
            cmd.arg(encode_symbol(&symbol.symbol).as_ref());
            cmd.arg(packer.pack(symbol, batch.from, &self.intervals));
        }
        cmd
    }

    /// Raises the watermark to `to`; with a `grace` (ms) at most as far as Redis's clock allows.
    pub async fn advance(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        guard: &Guard,
        to: Watermark,
        grace: Option<i64>,
    ) -> Result<Advanced, StoreError> {
        let mut cmd = self.guarded(&ADVANCE, partition, guard);
        cmd.arg(to.to_string()).arg(grace.map(|ms| ms.to_string()).unwrap_or_default());
        let mut reply = call("advance", &ADVANCE, conn, &cmd).await?;
        match reply.text()?.as_str() {
            "OK" => Ok(Advanced::Ok { watermark: reply.watermark()?, next_due: reply.optional()? }),
            word => refusal(word).map(Advanced::Refused).ok_or_else(|| reply.malformed("OK or a refusal")),
        }
    }

    /// Seals a page of windows that the watermark has passed.
    pub async fn close(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        guard: &Guard,
    ) -> Result<Closed, StoreError> {
        let mut cmd = self.guarded(&CLOSE, partition, guard);
        cmd.arg(self.limits.page).arg(self.limits.expiry);
        let mut reply = call("close", &CLOSE, conn, &cmd).await?;
        match reply.text()?.as_str() {
            word @ ("OK" | "MORE") => Ok(Closed::Ok {
                more: word == "MORE",
                outputs: reply.entries()?,
                tail: reply.outbox_id()?,
                next_due: reply.optional()?,
                lost: reply.texts()?,
            }),
            word => refusal(word).map(Closed::Refused).ok_or_else(|| reply.malformed("OK, MORE or a refusal")),
        }
    }

    /// Sends a page of the open candles that changed.
    pub async fn update(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        guard: &Guard,
    ) -> Result<Updated, StoreError> {
        let mut cmd = self.guarded(&UPDATE, partition, guard);
        cmd.arg(self.limits.updates.unwrap_or(0)).arg(self.limits.page.min(UPDATES_PAGE));
        let mut reply = call("update", &UPDATE, conn, &cmd).await?;
        match reply.text()?.as_str() {
            word @ ("OK" | "MORE") => Ok(Updated::Ok {
                more: word == "MORE",
                outputs: reply.entries()?,
                tail: reply.outbox_id()?,
                left: reply.whole()? as u64,
            }),
            "WAIT" => Ok(Updated::Wait { ms: reply.whole()? as u64, left: reply.whole()? as u64 }),
            word => {
                refusal(word).map(Updated::Refused).ok_or_else(|| reply.malformed("OK, MORE, WAIT or a refusal"))
            }
        }
    }

    /// Says that the owner is alive, and what holds time back.
    pub async fn heartbeat(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        guard: &Guard,
        state: &str,
        reason: &str,
    ) -> Result<Beat, StoreError> {
        let mut cmd = self.guarded(&HEARTBEAT, partition, guard);
        cmd.arg(state).arg(reason);
        let mut reply = call("heartbeat", &HEARTBEAT, conn, &cmd).await?;
        match reply.text()?.as_str() {
            "OK" => Ok(Beat::Ok { outbox: reply.whole()? as u64, open_windows: reply.whole()? as u64 }),
            word => refusal(word).map(Beat::Refused).ok_or_else(|| reply.malformed("OK or a refusal")),
        }
    }

    /// Drops outbox entries up to and including `through`. `false`: fenced.
    pub async fn trim(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        token: &Token,
        through: OutboxId,
    ) -> Result<bool, StoreError> {
        let mut cmd = self.command(&TRIM, partition, token);
        cmd.arg(OutboxId { n: through.n + 1, ..through }.to_string());
        let mut reply = call("trim", &TRIM, conn, &cmd).await?;
        Ok(reply.text()? == "OK")
    }

    /// A page of the outbox, in order, from the entry after `after`.
    pub async fn read_outbox(
        &self,
        conn: &mut impl ConnectionLike,
        partition: &SourcePartition,
        after: Option<OutboxId>,
        count: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let start = after.map_or_else(|| "-".to_owned(), |id| format!("({id}"));
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(self.keys.outbox(partition)).arg(start).arg("+").arg("COUNT").arg(count);
        let value = run(conn, &cmd).await.map_err(|e| StoreError::of("read outbox", &e))?;
        parse_entries(value).ok_or(StoreError::Reply { call: "read outbox", expected: "outbox entries" })
    }

    /// Runs every command the scripts use on scratch keys of every family.
    pub async fn probe(&self, conn: &mut impl ConnectionLike) -> Result<(), StoreError> {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(PROBE.get_hash()).arg(0).arg(self.keys.namespace());
        let mut reply = call("probe", &PROBE, conn, &cmd).await?;
        if reply.text()? == "OK" {
            return Ok(());
        }
        Err(StoreError::Denied { what: reply.text()?, message: reply.text()? })
    }

    fn command(&self, script: &Script, partition: &SourcePartition, token: &Token) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.get_hash()).arg(4);
        cmd.arg(self.keys.source(partition)).arg(self.keys.due(partition)).arg(self.keys.outbox(partition));
        cmd.arg(self.keys.changed(partition));
        cmd.arg(self.keys.namespace()).arg(&token.0);
        cmd
    }

    fn updates(&self) -> &'static str {
        if self.limits.updates.is_some() { "updates" } else { "" }
    }

    fn guarded(&self, script: &Script, partition: &SourcePartition, guard: &Guard) -> Cmd {
        let mut cmd = self.command(script, partition, &guard.token);
        cmd.arg(guard.position.offset.0).arg(guard.position.watermark.to_string()).arg(guard.tail.to_string());
        cmd
    }
}

fn refusal(word: &str) -> Option<Refusal> {
    match word {
        "FENCED" => Some(Refusal::Fenced),
        "MOVED" => Some(Refusal::Moved),
        _ => None,
    }
}

fn mark_text(mark: &RecordMark) -> String {
    format!("{} {} {:08x}", mark.offset, mark.timestamp, mark.checksum)
}

/// Eight arguments, as `apply.lua` reads them.
fn extra_args(cmd: &mut Cmd, extra: &Extra) {
    cmd.arg(extra.offset.0).arg(extra.index);
    match &extra.kind {
        ExtraKind::Late { symbol, price, volume, ts, intervals } => {
            let names = intervals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            cmd.arg("late").arg(encode_symbol(symbol).as_ref()).arg(price.to_string()).arg(volume.to_string());
            cmd.arg(*ts).arg(names);
        }
        ExtraKind::DeadLetter { reason } => {
            cmd.arg("dead_letter").arg(reason).arg("").arg("").arg("").arg("");
        }
    }
}

/// Runs a script; one that the server does not know is loaded and run once more.
async fn call(
    name: &'static str,
    script: &Script,
    conn: &mut impl ConnectionLike,
    cmd: &Cmd,
) -> Result<Reply, StoreError> {
    let mut result = run(conn, cmd).await;
    if let Err(error) = &result
        && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    {
        script.load_async(conn).await.map_err(|e| StoreError::of(name, &e))?;
        result = run(conn, cmd).await;
    }
    match result.map_err(|e| StoreError::of(name, &e))? {
        Value::Array(items) => Ok(Reply::new(name, items)),
        _ => Err(StoreError::Reply { call: name, expected: "an array" }),
    }
}

async fn run(conn: &mut impl ConnectionLike, cmd: &Cmd) -> Result<Value, RedisError> {
    conn.req_packed_command(cmd).await?.extract_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_runs_every_command_that_a_worker_s_scripts_do() {
        let probe = include_str!("../../lua/probe.lua");
        let scripts = [
            COMMON,
            CANDLE,
            RULES,
            include_str!("../../lua/claim.lua"),
            include_str!("../../lua/apply.lua"),
            include_str!("../../lua/advance.lua"),
            include_str!("../../lua/close.lua"),
            include_str!("../../lua/update.lua"),
            include_str!("../../lua/heartbeat.lua"),
            include_str!("../../lua/trim.lua"),
        ];
        let mut commands = 0;
        let calls = scripts.iter().flat_map(|script| script.split("call").skip(1));
        for call in calls {
            let Some(rest) = call.strip_prefix("('").or_else(|| call.strip_prefix("_with_many('")) else {
                continue;
            };
            let command = rest.split('\'').next().unwrap();
            assert!(probe.contains(&format!("('{command}', ")), "{command} is not probed");
            commands += 1;
        }
        assert!(commands > 30, "only {commands} calls were found");
    }
}
