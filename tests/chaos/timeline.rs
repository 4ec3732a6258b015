//! What was done when, and how often each fault was injected.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::now;
use crate::plan::Fault;

/// The events of one run.
pub(crate) struct Timeline {
    started: OnceLock<(Instant, i64)>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: Vec<(i64, String)>,
    injected: BTreeMap<Fault, u32>,
    complaints: Vec<String>,
}

impl Timeline {
    pub(crate) fn new() -> Timeline {
        Timeline { started: OnceLock::new(), inner: Mutex::default() }
    }

    /// Times count from the first call of this.
    pub(crate) fn start(&self) -> (Instant, i64) {
        *self.started.get_or_init(|| (Instant::now(), now()))
    }

    /// Writes down an event.
    pub(crate) fn say(&self, text: impl Into<String>) {
        self.inner().lines.push((now(), text.into()));
    }

    /// Writes down a fault that took place.
    pub(crate) fn injected(&self, fault: Fault, detail: &str) {
        self.say(format!("{fault}{}{detail}", if detail.is_empty() { "" } else { ": " }));
        *self.inner().injected.entry(fault).or_default() += 1;
    }

    /// Writes down what must not happen, and fails the run at its end.
    pub(crate) fn complain(&self, text: impl Into<String>) {
        let text = text.into();
        self.say(format!("WRONG: {text}"));
        self.inner().complaints.push(text);
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        self.inner().complaints.clone()
    }

    pub(crate) fn counts(&self) -> BTreeMap<Fault, u32> {
        self.inner().injected.clone()
    }

    /// Sleeps until so long after the start.
    pub(crate) fn sleep_until(&self, at: Duration) {
        thread::sleep((self.start().0 + at).saturating_duration_since(Instant::now()));
    }

    /// Whether so long a time has passed.
    pub(crate) fn is_past(&self, at: Duration) -> bool {
        self.start().0.elapsed() >= at
    }

    /// One line an event, seconds since the start; the last one before the time `difference` (ms) is marked.
    pub(crate) fn told(&self, difference: Option<i64>) -> String {
        let (_, started_at) = self.start();
        let inner = self.inner();
        let marked = difference.and_then(|at| inner.lines.iter().rposition(|(time, _)| *time <= at));
        let lines = inner.lines.iter().enumerate().map(|(number, (time, text))| {
            let mark = if Some(number) == marked { "  <- the last before the first difference" } else { "" };
            format!("  {:7.3} s  {text}{mark}", (time - started_at) as f64 / 1000.0)
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
