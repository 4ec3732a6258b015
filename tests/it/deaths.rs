//! A worker dies at each border of the flow, as under SIGKILL; another one takes over, and topics and Redis hold what
//! the oracle expects. At least once: a record that comes again is the same, word for word. Exactly once: none does.
//!
//! The points are in the source (`failpoint::pass`), in a build with the feature `failpoints`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use rustix::process::Signal;
use tickwatch::config::{Emit, Guarantee, OnStateLoss, Scalar};

use crate::harness::{Case, Needs, Stage, Worker, cases, skip};
use crate::market::{Market, SETTLED, put_rules, walk};

/// One test for each line: a name, the guarantee, what happens, the point, and at which passing of it the worker dies.
macro_rules! deaths {
    ($($test:ident: $guarantee:ident, $scene:ident, $point:literal, $passing:literal;)+) => {
        pub(crate) fn cases() -> Vec<Case> {
            let mut cases = cases!(Needs::Nothing; every_point_in_the_source_has_a_test);
            cases.extend(cases!(Needs::Both; $($test),+));
            cases
        }

        $(fn $test(stage: &Stage) -> anyhow::Result<()> {
            die_and_compare(stage, Guarantee::$guarantee, Scene::$scene, $point, $passing)
        })+

        /// The points that have a test.
        const TESTED: &[&str] = &[$($point),+];
    };
}

deaths! {
    the_start_is_committed: AtLeastOnce, Load, "start_committed", 2;
    the_start_is_committed_exactly_once: ExactlyOnce, Load, "start_committed", 1;
    the_producer_is_open_exactly_once: ExactlyOnce, Takeover, "producer_open", 1;
    the_committed_position_is_read: AtLeastOnce, Takeover, "committed_read", 1;
    the_committed_position_is_read_exactly_once: ExactlyOnce, Takeover, "committed_read", 2;
    the_partition_is_claimed: AtLeastOnce, Takeover, "claimed", 1;
    the_partition_is_claimed_exactly_once: ExactlyOnce, Takeover, "claimed", 2;
    the_outbox_is_read: AtLeastOnce, Takeover, "outbox_read", 1;
    the_outbox_is_read_exactly_once: ExactlyOnce, Takeover, "outbox_read", 2;
    the_claim_is_still_the_last: AtLeastOnce, Takeover, "beaten", 2;
    the_claim_is_still_the_last_exactly_once: ExactlyOnce, Takeover, "beaten", 1;
    reading_has_begun: AtLeastOnce, Takeover, "reading", 2;
    reading_has_begun_exactly_once: ExactlyOnce, Takeover, "reading", 1;
    records_are_read: AtLeastOnce, Load, "records_read", 4;
    records_are_read_exactly_once: ExactlyOnce, Load, "records_read", 3;
    a_batch_is_applied: AtLeastOnce, Load, "applied", 5;
    a_batch_is_applied_exactly_once: ExactlyOnce, Load, "applied", 1;
    windows_are_closed: AtLeastOnce, Silence, "closed", 1;
    windows_are_closed_exactly_once: ExactlyOnce, Silence, "closed", 2;
    time_has_passed_in_silence: AtLeastOnce, Silence, "advanced", 1;
    time_has_passed_in_silence_exactly_once: ExactlyOnce, Silence, "advanced", 2;
    outputs_are_on_their_way: AtLeastOnce, Load, "outputs_enqueued", 3;
    outputs_are_acknowledged: AtLeastOnce, Load, "sent", 4;
    the_delivered_position_is_committed: AtLeastOnce, Load, "committed", 2;
    a_transaction_has_begun_exactly_once: ExactlyOnce, Load, "transaction_begun", 2;
    a_transaction_waits_for_its_commit_exactly_once: ExactlyOnce, Load, "transaction_filled", 3;
    a_transaction_is_committed_exactly_once: ExactlyOnce, Load, "transacted", 3;
    open_candles_are_sent: AtLeastOnce, Updates, "updated", 3;
    open_candles_are_sent_exactly_once: ExactlyOnce, Updates, "updated", 3;
    open_candles_are_committed_exactly_once: ExactlyOnce, Updates, "transacted", 4;
    the_outbox_is_trimmed: AtLeastOnce, Load, "trimmed", 2;
    the_outbox_is_trimmed_exactly_once: ExactlyOnce, Load, "trimmed", 3;
    the_state_is_being_rebuilt: AtLeastOnce, Rebuild, "applied", 4;
    the_state_is_being_rebuilt_exactly_once: ExactlyOnce, Rebuild, "applied", 2;
    the_partition_is_given_up: AtLeastOnce, Stop, "released", 1;
    the_partition_is_given_up_exactly_once: ExactlyOnce, Stop, "released", 2;
}

/// What the worker that dies is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Its partitions' first owner, under load.
    Load,
    /// The same, and it sends open candles.
    Updates,
    /// It takes over what another death left: applied, not delivered.
    Takeover,
    /// Redis lost all but the rules, and it reads the log again.
    Rebuild,
    /// It has read everything, and time passes on evidence.
    Silence,
    /// It was told to end.
    Stop,
}

/// How long a worker may take to come to the point.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seed of the ticks; what they are is of no importance.
const SEED: u64 = 31;

fn die_and_compare(
    stage: &Stage,
    guarantee: Guarantee,
    scene: Scene,
    point: &str,
    passing: u32,
) -> anyhow::Result<()> {
    if !cfg!(feature = "failpoints") {
        return Err(skip("built without --features failpoints"));
    }
    let mut market = Market::open(stage, 2, |config| {
        config.kafka.processing_guarantee = guarantee;
        config.worker.max_batch = 20; // several passings of each point
        config.recovery.on_state_loss = OnStateLoss::Rebuild;
        // The dead are missed sooner.
        config.kafka.consumer.insert("session.timeout.ms".into(), Scalar("1000".into()));
        if scene == Scene::Updates {
            config.output.emit = Emit::Updates;
            config.output.update_interval = Duration::from_millis(150);
        }
        if scene == Scene::Silence {
            config.candles.idle_grace = Duration::ZERO;
        }
    })?;
    put_rules(&mut market)?;
    let mut ticks = walk(SEED);
    market.send(ticks.by_ref().take(400))?;

    if scene == Scene::Rebuild {
        let mut before = Worker::start(&market.config)?;
        market.wait_delivered()?;
        before.kill()?;
        let mut redis = market.redis()?;
        let keys: Vec<String> = redis.keys(market.key("*"))?;
        let lost: Vec<String> = keys.into_iter().filter(|key| !key.contains(":rules:")).collect();
        let () = redis.del(lost)?;
    }
    if scene == Scene::Takeover {
        let mut before = start(&market, "applied", 5)?;
        expect_death(&mut before, "applied")?;
    }
    let mut dying = start(&market, point, passing)?;
    match scene {
        Scene::Silence | Scene::Rebuild => {}
        Scene::Load | Scene::Takeover | Scene::Updates => {
            market.under_load(&mut ticks, || dying.wait(PATIENCE).map(drop))?;
        }
        Scene::Stop => market.under_load(&mut ticks, || {
            market.wait_under_way()?;
            dying.stop().map(drop)
        })?,
    }
    expect_death(&mut dying, point)?;

    let next = Worker::start(&market.config)?;
    if scene == Scene::Silence {
        wait_closed(&market)?;
    } else {
        market.send_closing()?;
    }
    market.wait_delivered().with_context(|| next.logs())?;
    match guarantee {
        Guarantee::AtLeastOnce => market.check().map(drop),
        Guarantee::ExactlyOnce => market.check_each_once(&[&dying, &next]).and_then(|()| market.check_order()),
    }
}

/// Starts a worker that dies at a passing of a point.
fn start(market: &Market, point: &str, passing: u32) -> anyhow::Result<Worker> {
    let actions = match passing {
        1 => "return".to_owned(),
        later => format!("{}*off->return", later - 1),
    };
    Worker::start_with(&market.config, &[], &[("TW_TEST_FAILPOINT", &format!("{point}={actions}"))])
}

/// The worker dies where it was told to, not before and not otherwise.
fn expect_death(worker: &mut Worker, point: &str) -> anyhow::Result<()> {
    let status = worker.wait(PATIENCE)?;
    let said = format!("died at failpoint {point}\n");
    let died = status.signal() == Some(Signal::KILL.as_raw()) && worker.logs().contains(&said);
    ensure!(died, "it ended otherwise: {status}: {}", worker.logs());
    Ok(())
}

/// Waits until silence has closed every window.
fn wait_closed(market: &Market) -> anyhow::Result<()> {
    let mut redis = market.redis()?;
    let due = [0, 1].map(|number| market.key(&format!("due:{}/{number}", market.config.kafka.topic)));
    crate::harness::wait_until(SETTLED, "every window to be closed", || {
        due.iter().all(|key| redis.zcard::<_, usize>(key).is_ok_and(|open| open == 0))
    })
}

fn every_point_in_the_source_has_a_test(_: &Stage) -> anyhow::Result<()> {
    let mut points = BTreeSet::new();
    collect_points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut points)?;
    let tested: BTreeSet<String> = TESTED.iter().map(|point| (*point).to_owned()).collect();
    ensure!(points == tested, "in the source: {points:?}\ntested: {tested:?}");
    Ok(())
}

fn collect_points(folder: &Path, points: &mut BTreeSet<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_points(&path, points)?;
            continue;
        }
        for call in fs::read_to_string(&path)?.split("failpoint::pass(").skip(1) {
            let point = call.strip_prefix('"').and_then(|call| call.split('"').next());
            let point = point.with_context(|| format!("{}: a point's name is a literal", path.display()))?;
            points.insert(point.to_owned());
        }
    }
    Ok(())
}
