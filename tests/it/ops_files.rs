//! What operators put into their own programs: alerts for Prometheus, a dashboard for Grafana, a unit for systemd,
//! manifests for Kubernetes. Each is checked by the program it is for, or by one that knows its schema, where that is
//! installed. That the metrics they name exist is a unit test of the catalogue.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tickwatch::config::Config;

use crate::harness::{Case, Needs, PROGRAM, Stage, Worker, cases, program, skip};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Nothing;
        every_alert_says_what_is_wrong_and_the_next_step,
        every_alert_fires_and_is_silent_as_its_tests_say,
        every_query_of_the_dashboard_is_one,
        the_panels_of_the_dashboard_have_their_places,
        systemd_takes_the_unit_and_finds_it_closed,
        manifests_are_as_kubernetes_wants_them,
        what_kustomize_makes_is_too,
        the_configuration_for_kubernetes_is_one,
        supervisors_wait_longer_than_a_stop_may_take,
    );
    cases.extend(cases!(Needs::Both; what_a_worker_exports_is_as_prometheus_wants_it));
    cases
}

/// A file under `ops/`.
fn ops(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops").join(path)
}

/// Runs a checker to its end with this on its standard input; everything it said. A skip where it is not installed.
fn checked_by(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(skip(format!("{program} is not installed (make install-ops)")));
        }
        child => child.with_context(|| program.to_owned())?,
    };
    let mut stdin = child.stdin.take().context("a piped input")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    ensure!(output.status.success(), "{program} {arguments:?}: {}\n{said}", output.status);
    Ok(said)
}

fn promtool(arguments: &[&str], input: &str) -> anyhow::Result<String> {
    checked_by("promtool", arguments, input)
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(ops(path)).with_context(|| path.to_owned())
}

fn alerts() -> anyhow::Result<BTreeSet<String>> {
    let text = read("prometheus/alerts.yml")?;
    Ok(text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect())
}

fn every_alert_says_what_is_wrong_and_the_next_step(_: &Stage) -> anyhow::Result<()> {
    let text = read("prometheus/alerts.yml")?;
    let alerts: Vec<&str> = text.split("- alert: ").skip(1).collect();
    ensure!(!alerts.is_empty(), "there are alerts");
    for alert in alerts {
        for part in ["severity: ", "summary: ", "next_step: "] {
            ensure!(alert.contains(part), "{part} is not in\n{alert}");
        }
    }
    let config = ops("prometheus/prometheus.yml");
    promtool(&["check", "config", &config.to_string_lossy()], "")?;
    Ok(())
}

fn every_alert_fires_and_is_silent_as_its_tests_say(_: &Stage) -> anyhow::Result<()> {
    let tests = read("prometheus/alerts_test.yml")?;
    for alert in alerts()? {
        for case in ["fires", "is silent"] {
            let name = format!("- name: {alert} {case}");
            ensure!(tests.lines().any(|line| line.trim() == name), "there is no test {name:?}");
        }
    }
    promtool(&["test", "rules", &ops("prometheus/alerts_test.yml").to_string_lossy()], "")?;
    Ok(())
}

fn dashboard() -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&read("grafana/tickwatch.json")?)?)
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().into_iter().flatten()
}

/// Each as a recording rule, which Prometheus' tool parses.
fn every_query_of_the_dashboard_is_one(_: &Stage) -> anyhow::Result<()> {
    let dashboard = dashboard()?;
    let targets = panels(&dashboard).flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<&str> = targets.filter_map(|target| target["expr"].as_str()).collect();
    ensure!(!queries.is_empty(), "there are queries");
    let rules = queries.iter().enumerate().map(|(number, query)| {
        let query = query.replace("$__rate_interval", "5m");
        serde_json::json!({ "record": format!("query:{number}"), "expr": query })
    });
    let file = tempfile::Builder::new().suffix(".yml").tempfile()?;
    let group = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    fs::write(file.path(), group.to_string())?; // JSON is YAML
    promtool(&["check", "rules", &file.path().to_string_lossy()], "")?;
    Ok(())
}

fn the_panels_of_the_dashboard_have_their_places(_: &Stage) -> anyhow::Result<()> {
    let dashboard = dashboard()?;
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().context("a title")?;
        ensure!(ids.insert(panel["id"].as_i64()), "{title} has the id of another panel");
        ensure!(panel["type"] == "row" || panel["description"].is_string(), "{title} says what it shows");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap_or_default());
        ensure!(w > 0 && h > 0 && x + w <= 24, "{title} is not within the 24 columns");
        for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
            ensure!(taken.insert(cell), "{title} lies over another panel");
        }
    }
    Ok(())
}

fn what_a_worker_exports_is_as_prometheus_wants_it(stage: &Stage) -> anyhow::Result<()> {
    let config = stage.config();
    for topic in
        [&config.kafka.topic, &config.output.notifications, &config.output.candles, &config.dead_letter_topic()]
    {
        stage.create_topic(topic, 1)?;
    }
    let mut worker = Worker::start(&config)?;
    worker.wait_ready()?;
    promtool(&["check", "metrics"], &worker.get("/metrics")?)?;
    Ok(())
}

fn systemd_takes_the_unit_and_finds_it_closed(_: &Stage) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tickwatch.service");
    fs::write(&file, read("systemd/tickwatch.service")?.replace("/usr/bin/tickwatch", PROGRAM))?;
    let file = file.to_string_lossy();
    let said = checked_by("systemd-analyze", &["verify", "--man=no", &file], "")?;
    ensure!(said.is_empty(), "{said}");
    // Out of 100; systemd calls what is up to 20 "OK".
    checked_by("systemd-analyze", &["security", "--no-pager", "--offline=true", "--threshold=20", &file], "")?;
    Ok(())
}

/// Strictly: a name that Kubernetes does not know is an error.
fn kubernetes_takes(files: &[&Path]) -> anyhow::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/kubernetes-validate/bin/kubernetes-validate");
    let program =
        if here.exists() { here.to_string_lossy().into_owned() } else { "kubernetes-validate".to_owned() };
    for file in files {
        checked_by(&program, &["--strict", &file.to_string_lossy()], "")?;
    }
    Ok(())
}

fn manifests_are_as_kubernetes_wants_them(_: &Stage) -> anyhow::Result<()> {
    // Those of other programs (kustomize, KEDA) are not among Kubernetes' own.
    let kustomization = read("kubernetes/kustomization.yaml")?;
    let resources = kustomization.split("resources:\n").nth(1).context("resources")?;
    let names = resources.lines().map_while(|line| line.strip_prefix("  - ")).collect::<Vec<_>>();
    ensure!(names.len() > 1, "resources are listed: {names:?}");
    let files: Vec<PathBuf> = names.iter().map(|name| ops("kubernetes").join(name)).collect();
    kubernetes_takes(&files.iter().map(PathBuf::as_path).collect::<Vec<_>>())
}

fn what_kustomize_makes_is_too(_: &Stage) -> anyhow::Result<()> {
    let made = checked_by("kubectl", &["kustomize", &ops("kubernetes").to_string_lossy()], "")?;
    for part in ["kind: ConfigMap", "kind: Deployment", "kind: PodDisruptionBudget", "topic = \"market-updates\""] {
        ensure!(made.contains(part), "{part} is not in\n{made}");
    }
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    fs::write(file.path(), made)?;
    kubernetes_takes(&[file.path()])
}

fn the_configuration_for_kubernetes_is_one(_: &Stage) -> anyhow::Result<()> {
    let file = ops("kubernetes/tickwatch.toml");
    let output = program().arg("--config").arg(&file).args(["config", "show"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown: Config = toml::from_str(&String::from_utf8(output.stdout)?)?;
    ensure!(shown.http.listen.ip().is_unspecified(), "probes come from other hosts: {}", shown.http.listen);
    // KEDA asks Kafka by names of its own.
    let scaling = read("kubernetes/scaling-keda.yaml")?;
    let Config { kafka, .. } = shown;
    for (name, value) in
        [("bootstrapServers", kafka.brokers), ("consumerGroup", kafka.group), ("topic", kafka.topic)]
    {
        ensure!(scaling.contains(&format!("{name}: {value}\n")), "{name} is not {value} in\n{scaling}");
    }
    Ok(())
}

/// What is in flight and the group may each take `stop_deadline`.
fn supervisors_wait_longer_than_a_stop_may_take(_: &Stage) -> anyhow::Result<()> {
    let stop = 2 * Config::default().worker.stop_deadline;
    for (file, setting) in [
        ("systemd/tickwatch.service", "TimeoutStopSec="),
        ("kubernetes/deployment.yaml", "terminationGracePeriodSeconds: "),
    ] {
        let text = read(file)?;
        let value = text.lines().find_map(|line| line.trim().strip_prefix(setting)).context(setting)?;
        ensure!(Duration::from_secs(value.parse()?) > stop, "{file}: {setting}{value} is not longer than {stop:?}");
    }
    Ok(())
}
