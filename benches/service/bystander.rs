//! Somebody else on the same Redis, who only wants a value now and then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::common::connect;
use crate::statistics::percentile;

/// Between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(2);

/// How long answers took.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Times {
    pub(crate) calls: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

/// `GET`s a key of no concern to anybody until told that it is over.
pub(crate) fn ask_until(url: String, done: &AtomicBool) -> anyhow::Result<Times> {
    let mut redis = connect(&url)?;
    let () = redis::cmd("SET").arg("bystander").arg("value").query(&mut redis)?;
    let mut took = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let _: String = redis::cmd("GET").arg("bystander").query(&mut redis)?;
        took.push(asked.elapsed().as_secs_f64() * 1e6);
        thread::sleep(PAUSE);
    }
    took.sort_by(f64::total_cmp);
    Ok(Times {
        calls: took.len(),
        p50_us: percentile(&took, 0.50),
        p99_us: percentile(&took, 0.99),
        max_us: percentile(&took, 1.0),
    })
}
