//! That an alert waits for nothing that is yet to come. How long it takes is for the benchmark to say.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::alerts::{Alerts, Outputs};
use crate::harness::{Case, Needs, Stage, cases};
use crate::market::{Market, start};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both; a_lone_alert_is_sent_at_once)
}

/// What librdkafka would have each output wait for others.
const LINGER_OF_LIBRDKAFKA: Duration = Duration::from_millis(5);
/// On a busy machine some alerts take longer for other reasons; a wait for others is in every one.
const ALERTS: usize = 200;

fn a_lone_alert_is_sent_at_once(stage: &Stage) -> anyhow::Result<()> {
    let mut market = Market::open(stage, 1, |_| {})?;
    let alerts = Alerts::open(&mut market)?;
    let _workers = start(&market, 1)?;
    let outputs = Outputs::from_now_on(&market)?;
    let mut fastest = Duration::MAX;
    for _ in 0..ALERTS {
        let sent = Instant::now();
        alerts.send(&market)?;
        fastest = fastest.min(outputs.wait_for_one()?.duration_since(sent));
        if fastest < LINGER_OF_LIBRDKAFKA {
            break;
        }
    }
    println!("latency: {fastest:?}");
    ensure!(fastest < LINGER_OF_LIBRDKAFKA, "the fastest of {ALERTS} alerts took {fastest:?}");
    Ok(())
}
