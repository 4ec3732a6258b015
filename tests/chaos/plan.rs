//! What a seed decides before anything runs: the settings, the traffic and which faults come when.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tickwatch::config::{Config, Emit, Guarantee, LatePolicy, Numbers, Scalar};

/// Everything a seed decides. The same seed makes the same plan; how threads and processes interleave is the machine's.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) time: Time,
    pub(crate) partitions: i32,
    pub(crate) workers: usize,
    pub(crate) symbols: usize,
    /// Ticks a second, on average.
    pub(crate) rate: u32,
    /// How long faults and traffic last.
    pub(crate) length: Duration,
    /// Part of the ticks is written by transactions, some of which are aborted.
    pub(crate) transactions: bool,
    /// The broker stamps records as they are appended, and that is what future ticks are measured by.
    pub(crate) append_time: bool,
    /// Redis is kept by a Sentinel that promotes its replica, not reached through the proxy.
    pub(crate) sentinel: bool,
    /// A long and steady run: its first worker stays, and candles expire.
    pub(crate) soak: bool,
    pub(crate) settings: Settings,
    /// In order of time.
    pub(crate) faults: Vec<(Duration, Fault)>,
}

/// What moves event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Ticks of long ago, so many times as fast as they came. No clock closes a window: the log alone says what must
    /// come out.
    Log(u32),
    /// Ticks of now. Quiet partitions' windows are closed by the clock, as far as evidence allows.
    Clock,
}

/// What goes into `tickwatch.toml`.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) guarantee: Guarantee,
    pub(crate) late: LatePolicy,
    pub(crate) intervals: &'static [&'static str],
    pub(crate) lateness: Duration,
    pub(crate) idle_grace: Duration,
    pub(crate) keep: Duration,
    pub(crate) session: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) max_batch: u32,
    pub(crate) max_outputs: u32,
    pub(crate) max_undelivered: u32,
    pub(crate) max_buffered: u32,
    pub(crate) numbers: Numbers,
    /// Open candles are sent too, each at most so often.
    pub(crate) update_interval: Option<Duration>,
}

macro_rules! faults {
    ($($fault:ident $lane:ident $name:literal),+ $(,)?) => {
        /// What is done to the service while it runs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Fault { $($fault),+ }

        impl Fault {
            pub(crate) const ALL: &[Fault] = &[$(Fault::$fault),+];

            pub(crate) fn lane(self) -> Lane {
                match self { $(Fault::$fault => Lane::$lane),+ }
            }

            pub(crate) fn name(self) -> &'static str {
                match self { $(Fault::$fault => $name),+ }
            }
        }
    };
}

faults! {
    WorkerKilled Workers "worker killed",
    WorkerFrozen Workers "worker frozen past its session",
    WorkerPaused Workers "worker frozen briefly",
    WorkerCutOff Workers "worker cut off from kafka past its session",
    WorkerLeaves Workers "worker leaves",
    WorkerJoins Workers "worker joins",
    AllWorkersKilled Workers "all workers killed",
    RedisKilled Redis "redis killed and restarted",
    RedisRolledBack Redis "redis back from an older snapshot",
    ReplicaPromoted Redis "replica promoted by sentinel",
    RedisStalls Redis "redis stalls",
    RedisBusy Redis "redis busy with a script",
    RedisFull Redis "redis at maxmemory",
    RedisReadOnly Redis "redis read only",
    DiskSlow Redis "append-only file on a slow disk",
    ScriptsFlushed Redis "scripts flushed",
    ConnectionsKilled Redis "connections killed by redis",
    RepliesDelayed Redis "replies delayed past the timeout",
    RepliesLost Redis "replies lost",
    RuleAdded Redis "rule added",
    RuleRemoved Redis "rule removed",
    BrokerKilled Kafka "broker killed and restarted",
    BrokerRestarted Kafka "broker stopped and restarted",
    PartitionsAdded Kafka "partitions added",
}

impl Fault {
    /// How much more likely than others: what the guarantees are about comes more often.
    fn weight(self) -> usize {
        match self {
            Fault::WorkerFrozen | Fault::WorkerCutOff | Fault::RedisRolledBack | Fault::ReplicaPromoted => 3,
            Fault::WorkerKilled => 2,
            _ => 1,
        }
    }
}

/// Faults of one lane come one after the other, those of different lanes overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Workers,
    Redis,
    Kafka,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stream of random numbers of its own for each purpose, so that a change in one leaves the others as they were.
pub(crate) fn rng(seed: u64, purpose: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(purpose))
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut rng = rng(seed, 1);
        let time = match rng.random_range(0..5) {
            0 | 1 => Time::Clock,
            _ => Time::Log(*[1, 3, 10, 30].choose(&mut rng).expect("not empty")),
        };
        let sentinel = rng.random_bool(0.2);
        let length = Duration::from_millis(rng.random_range(7_000..14_000));
        let mut plan = Plan {
            seed,
            time,
            partitions: rng.random_range(1..=6),
            workers: rng.random_range(2..=4),
            symbols: rng.random_range(4..=48),
            rate: *[100, 300, 800, 1_500].choose(&mut rng).expect("not empty"),
            length,
            transactions: rng.random_bool(0.3),
            append_time: time == Time::Clock || rng.random_bool(0.5),
            sentinel,
            soak: false,
            settings: Settings::draw(&mut rng, time),
            faults: Vec::new(),
        };
        plan.faults = plan.draw_faults(&mut rng);
        plan.settings.update_interval = draw_update_interval(&mut self::rng(seed, 7));
        plan
    }

    /// Steady load with rule changes and rolling restarts.
    pub(crate) fn soak(seed: u64, length: Duration) -> Plan {
        let each = |fault: Fault, first: u64, every: u64| {
            (first..length.as_secs()).step_by(every as usize).map(move |at| (Duration::from_secs(at), fault))
        };
        let mut faults: Vec<(Duration, Fault)> = each(Fault::WorkerLeaves, 60, 120)
            .chain(each(Fault::WorkerJoins, 65, 120))
            .chain(each(Fault::RuleAdded, 10, 30))
            .chain(each(Fault::RuleRemoved, 25, 30))
            .collect();
        faults.sort();
        let drawn = Plan::of(seed);
        Plan {
            time: Time::Log(1),
            partitions: 6,
            workers: 3,
            symbols: 48,
            rate: 500,
            length,
            transactions: false,
            sentinel: false,
            soak: true,
            settings: Settings {
                intervals: &["1s", "1m"],
                lateness: Duration::from_secs(1),
                idle_grace: Duration::from_hours(1),
                late: LatePolicy::Revise,
                keep: Duration::from_mins(1),
                session: Duration::from_secs(6),
                response_timeout: Duration::from_secs(5),
                max_batch: 20_000,
                max_outputs: 10_000,
                max_undelivered: 50_000,
                max_buffered: 50_000,
                ..drawn.settings
            },
            faults,
            ..drawn
        }
    }

    fn draw_faults(&self, rng: &mut StdRng) -> Vec<(Duration, Fault)> {
        let possible: Vec<Fault> = Fault::ALL
            .iter()
            .filter(|fault| self.may_have(**fault))
            .flat_map(|fault| std::iter::repeat_n(*fault, fault.weight()))
            .collect();
        let count = rng.random_range(5..=14);
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| (self.length.mul_f64(rng.random_range(0.05..0.95)), *possible.choose(rng).expect("not empty")))
            .collect();
        faults.sort();
        faults
    }

    fn may_have(&self, fault: Fault) -> bool {
        match fault {
            Fault::ReplicaPromoted => self.sentinel,
            // What steers the one Redis, or the way to it. And a new partition: where its first claim is not on the replica
            // yet, the state is lost, and a worker stops there.
            Fault::RedisKilled
            | Fault::RedisRolledBack
            | Fault::RedisReadOnly
            | Fault::RepliesDelayed
            | Fault::RepliesLost
            | Fault::PartitionsAdded => !self.sentinel,
            _ => true,
        }
    }

    /// Whether Redis may come back older than it was.
    pub(crate) fn rolls_back(&self) -> bool {
        self.sentinel || self.faults.iter().any(|(_, fault)| *fault == Fault::RedisRolledBack)
    }

    /// How often Redis may come back older than it was.
    pub(crate) fn rollbacks(&self) -> usize {
        let older = |fault: Fault| {
            matches!(fault, Fault::RedisRolledBack) || (self.sentinel && fault == Fault::ReplicaPromoted)
        };
        self.faults.iter().filter(|(_, fault)| older(*fault)).count() + usize::from(self.sentinel)
    }

    /// The service's configuration, but for names and addresses.
    pub(crate) fn configure(&self, config: &mut Config) -> anyhow::Result<()> {
        let settings = &self.settings;
        config.kafka.processing_guarantee = settings.guarantee;
        config.candles.intervals =
            settings.intervals.iter().map(|name| Ok(name.parse()?)).collect::<anyhow::Result<_>>()?;
        config.candles.late = settings.late;
        config.candles.lateness = settings.lateness;
        config.candles.idle_grace = settings.idle_grace;
        config.candles.keep = settings.keep;
        config.redis.response_timeout = settings.response_timeout;
        config.rules.max_matches = settings.max_outputs.min(config.rules.max_matches);
        config.worker.max_batch = settings.max_batch;
        config.worker.max_outputs = settings.max_outputs;
        config.worker.max_undelivered = settings.max_undelivered;
        config.worker.max_buffered = settings.max_buffered;
        config.worker.heartbeat = Duration::from_millis(200);
        config.output.numbers = settings.numbers;
        if let Some(interval) = settings.update_interval {
            config.output.emit = Emit::Updates;
            config.output.update_interval = interval;
        }
        let milliseconds = |duration: Duration| Scalar(duration.as_millis().to_string());
        config.kafka.consumer.insert("session.timeout.ms".into(), milliseconds(settings.session));
        config.kafka.consumer.insert("heartbeat.interval.ms".into(), milliseconds(settings.session / 5));
        config.kafka.consumer.insert("topic.metadata.refresh.interval.ms".into(), Scalar("1000".into()));
        for client in [&mut config.kafka.consumer, &mut config.kafka.producer] {
            client.insert("reconnect.backoff.max.ms".into(), Scalar("500".into()));
        }
        Ok(())
    }
}

/// From numbers of its own: what came before it is drawn as before.
fn draw_update_interval(rng: &mut StdRng) -> Option<Duration> {
    let ms = *[100, 250, 1_000].choose(rng).expect("not empty");
    rng.random_bool(0.5).then(|| Duration::from_millis(ms))
}

impl Settings {
    fn draw(rng: &mut StdRng, time: Time) -> Settings {
        let hour = Duration::from_hours(1);
        let intervals: &[&[&str]] = match time {
            // Nothing may wait longer for the clock than a run does.
            Time::Clock => &[&["100ms", "1s"], &["500ms"], &["200ms", "2s"]],
            Time::Log(_) => &[&["100ms", "1s"], &["500ms"], &["1s", "1m"], &["200ms", "5s", "1h"]],
        };
        let milliseconds =
            |rng: &mut StdRng, choices: &[u64]| Duration::from_millis(*choices.choose(rng).expect("not empty"));
        let intervals = *intervals.choose(rng).expect("not empty");
        let max_outputs = *[10, 200, 10_000].choose(rng).expect("not empty");
        Settings {
            guarantee: *[Guarantee::AtLeastOnce, Guarantee::ExactlyOnce].choose(rng).expect("not empty"),
            late: *[LatePolicy::Drop, LatePolicy::Divert, LatePolicy::Revise].choose(rng).expect("not empty"),
            intervals,
            lateness: milliseconds(rng, &[0, 100, 300, 1_000]),
            idle_grace: if time == Time::Clock { milliseconds(rng, &[100, 500, 1_000]) } else { hour },
            // Closed candles stay in Redis for twice as long as this by the wall clock: longer than a run. And it has
            // to be as long as an interval.
            keep: if rng.random_bool(0.5) && !intervals.contains(&"1h") {
                Duration::from_mins(3)
            } else {
                hour * 24
            },
            session: milliseconds(rng, &[1_500, 2_500, 4_000]),
            response_timeout: milliseconds(rng, &[400, 1_000, 5_000]),
            max_batch: *[20, 500, 20_000].choose(rng).expect("not empty"),
            max_outputs,
            max_undelivered: max_outputs * *[1, 5, 1_000].choose(rng).expect("not empty"),
            max_buffered: *[200, 50_000].choose(rng).expect("not empty"),
            numbers: *[Numbers::Number, Numbers::String].choose(rng).expect("not empty"),
            update_interval: None,
        }
    }
}
