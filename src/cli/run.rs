//! `tickwatch run`: one worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::dashboard::Dashboard;
use crate::http::{self, Health, Server};
use crate::telemetry;
use crate::worker::supervisor;

/// Flags of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch run                                          # with ./tickwatch.toml\n  \
    tickwatch run --config /etc/tickwatch/tickwatch.toml --log-format json\n  \
    tickwatch run --until-end                              # what is there now, then a summary\n\n\
    Stop it with SIGTERM or Ctrl-C: it finishes what is in flight, commits, and leaves the group.\n\
    Start as many as you like: each takes its share of the partitions.")]
pub(super) struct Args {
    /// Process what is in the source topic now, close every window, deliver everything, then end
    #[arg(long)]
    until_end: bool,
}

/// Runs a worker until it is told to stop or, with `--until-end`, is done.
pub(super) async fn run(config: Config, args: Args) -> anyhow::Result<()> {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let metrics = telemetry::start_metrics()?;
    let health = Health::starting();
    let server = Server::bind(config.http.listen).await?;
    let (stop_server, stopped) = oneshot::channel::<()>();
    let dashboard = config.dashboard.enabled.then(|| Dashboard::start(&config, "a worker"));
    let mut routes = http::routes(health.clone(), metrics.clone());
    if let Some(dashboard) = &dashboard {
        tracing::info!("the live page is at http://{}/", server.address());
        routes = routes.merge(dashboard.routes());
    }
    let serving = tokio::spawn(server.run(routes, metrics, async {
        let _ = stopped.await; // dropped or sent: both mean stop
    }));

    let told = Arc::new(AtomicBool::new(false));
    let outcome = supervisor::run(&config, health, args.until_end, stop(Arc::clone(&told))?).await;
    drop(dashboard);
    drop(stop_server);
    serving.await.context("the HTTP server ended badly")??;
    let summary = outcome?;
    if args.until_end && !told.load(Ordering::Relaxed) {
        println!("{}", serde_json::to_string(&summary)?);
        tracing::info!(
            "every window up to the end was closed, and that watermark stored: ticks older than it are late from now on"
        );
    }
    Ok(())
}

/// Completes when it is told to stop, and notes that it was.
fn stop(told: Arc<AtomicBool>) -> anyhow::Result<impl Future<Output = ()>> {
    let signal = stop_signal()?;
    Ok(async move {
        signal.await;
        told.store(true, Ordering::Relaxed);
        tracing::info!("stopping: finishing what is in flight");
    })
}

/// Completes at SIGTERM or SIGINT.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be listened for")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
