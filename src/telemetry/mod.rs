//! What operators see: logs on standard error, metrics for Prometheus.
//!
//! House rule: whatever goes wrong has one function in [`events`] that writes the log line and raises the counter
//! together, so that neither exists without the other. Names, labels and descriptions of all metrics are in
//! `catalogue`; handles for the hot path in [`PartitionMetrics`].

mod catalogue;
pub mod events;
mod partition;
mod throttle;

use std::io::{IsTerminal as _, stderr};

use metrics_exporter_prometheus::PrometheusHandle;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

pub use partition::{PartitionMetrics, PartitionState};

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people: time, level, message, fields.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Telemetry cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `RUST_LOG` is set to something that is no filter.
    #[error("RUST_LOG cannot be read; write one such as tickwatch=debug")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// A logger or recorder is installed already.
    #[error("telemetry was started twice in one process")]
    Twice,
}

/// Starts the log on standard error; standard output belongs to listings.
///
/// `RUST_LOG` decides what is logged if it is set, else `verbosity`, the number of `-v`.
pub fn start_log(format: LogFormat, verbosity: u8) -> Result<(), TelemetryError> {
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref(), verbosity)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    // The filter is a layer of its own. As a filter of `lines` alone it remembers its last verdict by thread: after a
    // line of librdkafka's that was not wanted, the next one of ours on that thread was lost.
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| TelemetryError::Twice)
}

/// Starts counting, every metric at zero; the handle renders `/metrics`. Before any metric is touched.
pub fn start_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let recorder = catalogue::recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| TelemetryError::Twice)?;
    catalogue::describe();
    catalogue::start_at_zero();
    Ok(handle)
}

/// Other crates' lines are one level quieter than ours.
fn filter(rust_log: Option<&str>, verbosity: u8) -> Result<EnvFilter, TelemetryError> {
    let directives = rust_log.filter(|text| !text.is_empty()).unwrap_or(match verbosity {
        0 => "warn,tickwatch=info",
        1 => "info,tickwatch=debug",
        _ => "debug,tickwatch=trace",
    });
    EnvFilter::try_new(directives).map_err(TelemetryError::Filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_refused_and_an_empty_one_is_none() {
        assert!(matches!(filter(Some("tickwatch=loud"), 0), Err(TelemetryError::Filter(_))));
        assert_eq!(filter(Some(""), 1).unwrap().to_string(), filter(None, 1).unwrap().to_string());
    }
}
