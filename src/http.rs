//! `/healthz` (alive), `/readyz` (doing its work, or one reason a line), `/metrics` (Prometheus).
//!
//! The worker writes into [`Health`] what it finds; a request only reads it, so that no probe reaches Redis or
//! Kafka.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::{Future, IntoFuture as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::telemetry::events;

/// How often metrics are tidied where nobody scrapes them; histograms would grow otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// How long an answer under way may take once the server is to stop: a client that reads or writes slowly, or not at
/// all, holds nothing up.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// What Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether this worker does its work, and if not, why. Cheap to clone; all clones are one.
///
/// Ready means: nothing below has a reason against it. A worker without partitions is ready.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<Reasons>>);

/// Reasons against being ready: each says why and the next step.
#[derive(Debug, Default)]
struct Reasons {
    starting: Option<String>,
    redis: Option<String>,
    kafka: Option<String>,
    clock: Option<String>,
    partitions: BTreeMap<i32, String>,
}

impl Health {
    /// A worker that has just begun: not ready until [`Health::set_started`].
    pub fn starting() -> Health {
        let health = Health::default();
        health.reasons().starting = Some("starting".to_owned());
        health
    }

    /// The start-up checks are through.
    pub fn set_started(&self) {
        self.reasons().starting = None;
    }

    /// The worker finishes what is in flight and leaves.
    pub fn set_stopping(&self) {
        self.reasons().starting = Some("stopping".to_owned());
    }

    /// The last call to Redis.
    pub fn set_redis(&self, outcome: Result<(), impl Display>) {
        self.reasons().redis = outcome.err().map(|e| format!("Redis: {e}"));
    }

    /// The last word of the Kafka client.
    pub fn set_kafka(&self, outcome: Result<(), impl Display>) {
        self.reasons().kafka = outcome.err().map(|e| format!("Kafka: {e}"));
    }

    /// Whether Kafka had a last word against it.
    pub fn kafka_is_away(&self) -> bool {
        self.reasons().kafka.is_some()
    }

    /// Whether this machine's clock can be believed.
    pub fn set_clock(&self, outcome: Result<(), impl Display>) {
        self.reasons().clock = outcome.err().map(|e| format!("clock: {e}"));
    }

    /// Why `partition` is stopped and what to do; `None` if it is not, or is not owned any more.
    pub fn set_partition(&self, partition: i32, stopped: Option<String>) {
        let partitions = &mut self.reasons().partitions;
        match stopped {
            Some(reason) => partitions.insert(partition, reason),
            None => partitions.remove(&partition),
        };
    }

    /// Every reason against being ready, one line each; empty: ready.
    pub fn reasons_against(&self) -> Vec<String> {
        let reasons = self.reasons();
        let Reasons { starting, redis, kafka, clock, partitions } = &*reasons;
        let partitions = partitions.iter().map(|(partition, why)| format!("partition {partition} stopped: {why}"));
        [starting, redis, kafka, clock]
            .into_iter()
            .flatten()
            .cloned()
            .chain(partitions)
            .map(|reason| reason.replace('\n', " "))
            .collect()
    }

    fn reasons(&self) -> MutexGuard<'_, Reasons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is taken.
    #[error("[http] listen {0} is in use by another process; choose another, or port 0 for a free one")]
    InUse(SocketAddr),
    /// The address cannot be bound for another reason.
    #[error("[http] listen {0} cannot be used")]
    Bind(SocketAddr, #[source] std::io::Error),
}

/// A bound listener that does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds `listen` and logs the address; port 0 takes a free one.
    pub async fn bind(listen: SocketAddr) -> Result<Server, HttpError> {
        let bound = async {
            let listener = TcpListener::bind(listen).await?;
            let address = listener.local_addr()?;
            Ok(Server { listener, address })
        };
        let server = bound.await.map_err(|e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AddrInUse => HttpError::InUse(listen),
            _ => HttpError::Bind(listen, e),
        })?;
        tracing::info!(address = %server.address, "listening at http://{}", server.address);
        Ok(server)
    }

    /// Where it listens, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `routes` until `stop` is done. Also tidies `metrics` now and then.
    pub async fn run(
        self,
        routes: Router,
        metrics: PrometheusHandle,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        tokio::select! {
            served = self.serve(routes, stop) => served,
            () = tidy(metrics) => Ok(()),
        }
    }

    /// Serves `routes` until `stop` is done.
    pub async fn serve(
        self,
        routes: Router,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let (told, heard) = oneshot::channel();
        let stop = async move {
            stop.await;
            let _ = told.send(()); // nobody hears it who has stopped already
        };
        let given_up = async {
            if heard.await.is_ok() {
                tokio::time::sleep(LAST_ANSWERS).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            served = axum::serve(self.listener, routes).with_graceful_shutdown(stop).into_future() => served,
            () = given_up => Ok(()),
        }
    }
}

async fn tidy(metrics: PrometheusHandle) {
    let mut every = tokio::time::interval(UPKEEP);
    loop {
        every.tick().await;
        metrics.run_upkeep();
    }
}

/// The three routes. Merge others into it before it is served.
pub fn routes(health: Health, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz).with_state(health.clone()))
        .route("/metrics", get(render).with_state((health, metrics)))
}

async fn render(State((health, metrics)): State<(Health, PrometheusHandle)>) -> Response {
    events::ready(health.reasons_against().is_empty());
    ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render()).into_response()
}

async fn readyz(State(health): State<Health>, headers: HeaderMap) -> Response {
    let reasons = health.reasons_against();
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("application/json") {
        return (status, Json(serde_json::json!({ "ready": ready, "reasons": reasons }))).into_response();
    }
    let text = if ready { "ready\n".to_owned() } else { format!("{}\n", reasons.join("\n")) };
    (status, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves on a free port while `ask` runs on a thread of its own with the server's URL.
    async fn with_server(health: Health, ask: impl FnOnce(String) + Send + 'static) {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || metrics::counter!("tickwatch_ticks_total").increment(2));
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let url = format!("http://{}", server.address());
        let asked = tokio::task::spawn_blocking(move || ask(url));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let handle = recorder.handle();
        let running = tokio::spawn(server.run(routes(health, handle.clone()), handle, async {
            stopped.await.unwrap_or_default();
        }));
        asked.await.unwrap();
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
    }

    fn get(url: &str, accept: &str) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut response = agent.get(url).header("Accept", accept).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_is_ready_when_nothing_is_against_it() {
        let health = Health::starting();
        with_server(health.clone(), move |url| {
            let readyz = format!("{url}/readyz");
            assert_eq!(get(&readyz, "*/*"), (503, "starting\n".to_owned()));
            health.set_started();
            assert_eq!(get(&readyz, "*/*"), (200, "ready\n".to_owned()));
            health.set_redis(Err("no answer;\ncheck [redis] url"));
            health.set_partition(3, Some("records are missing; set on_gap".to_owned()));
            let lines =
                "Redis: no answer; check [redis] url\npartition 3 stopped: records are missing; set on_gap\n";
            assert_eq!(get(&readyz, "text/plain"), (503, lines.to_owned()));
            health.set_redis(Ok::<(), &str>(()));
            assert_eq!(
                get(&readyz, "application/json"),
                (
                    503,
                    r#"{"ready":false,"reasons":["partition 3 stopped: records are missing; set on_gap"]}"#
                        .to_owned()
                )
            );
            health.set_partition(3, None);
            assert_eq!(get(&readyz, "application/json"), (200, r#"{"ready":true,"reasons":[]}"#.to_owned()));
            assert_eq!(get(&format!("{url}/healthz"), "*/*"), (200, "alive\n".to_owned()));
            assert!(get(&format!("{url}/metrics"), "*/*").1.contains("tickwatch_ticks_total 2"));
        })
        .await;
    }

    #[tokio::test]
    async fn a_port_in_use_is_told() {
        let first = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let second = Server::bind(first.address()).await.unwrap_err();
        assert!(matches!(second, HttpError::InUse(address) if address == first.address()), "{second}");
    }
}
