//! `tickwatch dashboard`: the page without a worker.

use anyhow::Context as _;
use axum::Router;
use tokio::sync::oneshot;

use super::run::stop_signal;
use crate::config::Config;
use crate::dashboard::Dashboard;
use crate::http::Server;

/// Flags of `dashboard`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch dashboard                                    # at [http] listen, 127.0.0.1:8080\n  \
    tickwatch dashboard --listen 127.0.0.1:9000            # beside a worker that has the port\n  \
    tickwatch dashboard --allow-writes                     # rules can be added, changed and removed on it\n\n\
    Workers serve the same page at their own [http] listen. It shows the whole group, from Redis and Kafka.")]
pub(super) struct Args {
    /// Address to serve it at, in place of [http] listen; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<std::net::SocketAddr>,
    /// Let whoever can reach it add, change and remove rules
    #[arg(long)]
    allow_writes: bool,
}

/// Serves the page until SIGTERM or Ctrl-C.
pub(super) async fn run(mut config: Config, args: Args) -> anyhow::Result<()> {
    config.dashboard.allow_writes |= args.allow_writes;
    let server = Server::bind(args.listen.unwrap_or(config.http.listen)).await?;
    println!("http://{}/", server.address());
    let dashboard = Dashboard::start(&config, "tickwatch dashboard");
    let routes = Router::new().route("/healthz", axum::routing::get(async || "alive\n")).merge(dashboard.routes());
    let (stop_server, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(routes, async {
        let _ = stopped.await; // dropped or sent: both mean stop
    }));
    stop_signal()?.await;
    dashboard.close();
    drop(stop_server);
    serving.await.context("the HTTP server ended badly")??;
    Ok(())
}
