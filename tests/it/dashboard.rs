//! The live page as programs see it: who may call it, what the stream says, who can change rules.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tickwatch::config::Config;
use tickwatch::sandbox::Process;

use crate::harness::{Case, Needs, Stage, Worker, cases, free_address, private_redis, program, skip, wait_until};
use crate::market::{Market, SETTLED, START_PRICE, start, tick, wait_shared};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        the_page_is_served_under_its_own_names_only_and_loads_nothing_from_elsewhere,
        every_worker_shows_the_whole_group,
        who_comes_back_goes_on_where_it_was,
        a_reader_that_does_not_read_holds_nobody_up,
        a_worker_that_dies_is_seen_and_so_is_where_its_partitions_go,
        rules_are_written_where_it_is_allowed_and_from_the_page_only,
        while_nobody_looks_nothing_is_asked,
        two_hundred_pages_cost_less_than_a_tenth_of_a_core,
    )
}

/// A live view, read as a browser reads it.
pub(crate) struct Live {
    events: BufReader<TcpStream>,
    pub(crate) view: Value,
    pub(crate) notes: Vec<Value>,
    last: String,
}

impl Live {
    pub(crate) fn open(address: SocketAddr, path: &str) -> anyhow::Result<Live> {
        Live::resume(address, path, "")
    }

    fn resume(address: SocketAddr, path: &str, last: &str) -> anyhow::Result<Live> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SETTLED))?;
        // HTTP/1.0, so that the events come as they are, without chunks around them.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nLast-Event-ID: {last}\r\n\r\n")?;
        let mut events = BufReader::new(stream);
        let mut status = String::new();
        events.read_line(&mut status)?;
        ensure!(status.contains(" 200 "), "{path}: {status}");
        Ok(Live { events, view: json!({}), notes: Vec::new(), last: String::new() })
    }

    /// Takes the next event; says whether it was the whole view.
    fn next(&mut self) -> anyhow::Result<bool> {
        let mut whole = false;
        loop {
            let mut line = String::new();
            ensure!(self.events.read_line(&mut line)? > 0, "the stream ended");
            if let Some(id) = line.strip_prefix("id: ") {
                id.trim_end().clone_into(&mut self.last);
            } else if line == "event: whole\n" {
                whole = true;
            } else if let Some(data) = line.strip_prefix("data: ") {
                let message: Value = serde_json::from_str(data)?;
                if let Some(view) = message.get("whole") {
                    self.view = view.clone();
                }
                if let Some(patch) = message.get("patch") {
                    merge(&mut self.view, patch);
                }
                self.notes.extend(message["notes"].as_array().into_iter().flatten().cloned());
                return Ok(whole);
            }
        }
    }

    /// Reads until the view is as wanted.
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&Live) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLED;
        while !wanted(self) {
            ensure!(Instant::now() < deadline, "waited in vain: {what}; the view is {:#}", self.view);
            self.next()?;
        }
        Ok(())
    }

    /// The owners of all partitions that have one.
    fn owners(&self) -> Vec<&str> {
        let rows = self.view["partitions"].as_object().into_iter().flatten();
        rows.filter_map(|(_, row)| row["owner"].as_str()).collect()
    }
}

/// What a page does with a patch (RFC 7386).
fn merge(view: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *view = patch.clone();
        return;
    };
    if !view.is_object() {
        *view = json!({});
    }
    for (key, value) in patch {
        let view = view.as_object_mut().expect("it was made one");
        if value.is_null() {
            view.remove(key);
        } else {
            merge(view.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// `tickwatch dashboard` as its own process.
pub(crate) struct Page {
    process: Process,
    _directory: TempDir,
    pub(crate) address: SocketAddr,
}

impl Page {
    pub(crate) fn start(config: &Config, arguments: &[&str]) -> anyhow::Result<Page> {
        let directory = tempfile::Builder::new().prefix("tickwatch-page-").tempdir()?;
        let file = directory.path().join("tickwatch.toml");
        std::fs::write(&file, toml::to_string(config)?)?;
        let address = free_address()?;
        let mut command = program();
        command.arg("--config").arg(&file).args(["dashboard", "--listen", &address.to_string()]).args(arguments);
        let process = Process::start(&command, &directory.path().join("log"))?;
        let page = Page { process, _directory: directory, address };
        wait_until(SETTLED, "the page to be served", || TcpStream::connect(address).is_ok())?;
        Ok(page)
    }
}

/// A request with its headers: status, headers and body of the answer.
fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SETTLED))?;
    let mut request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
    if headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("host")) {
        request += &format!("Host: {address}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, answer))
}

fn market(stage: &Stage, partitions: i32) -> anyhow::Result<Market<'_>> {
    Market::open(stage, partitions, |config| {
        config.candles.intervals = vec!["1s".parse().expect("an interval"), "1m".parse().expect("an interval")];
    })
}

fn the_page_is_served_under_its_own_names_only_and_loads_nothing_from_elsewhere(
    stage: &Stage,
) -> anyhow::Result<()> {
    let market = market(stage, 1)?;
    let workers = start(&market, 1)?;
    let get = |path: &str, headers: &[(&str, &str)]| call(workers[0].http(), "GET", path, headers, "");
    for path in ["/", "/symbols/BTC/USDT:USDT", "/symbols/A%20B"] {
        let (status, page) = get(path, &[])?;
        ensure!(status == 200 && page.contains("<!doctype html>"), "{path}: {page}");
        ensure!(
            page.contains("content-security-policy: default-src 'none'; script-src 'self'"),
            "{path}: {page:.600}"
        );
    }
    let (_, script) = get("/assets/app.js", &[])?;
    let etag = script.lines().find_map(|line| line.strip_prefix("etag: ")).context("no etag")?.to_owned();
    ensure!(get("/assets/app.js", &[("If-None-Match", &etag)])?.0 == 304);
    for path in ["/", "/assets/app.js", "/api/overview", "/api/symbols?q=A"] {
        let (status, answer) = get(path, &[("Host", "evil.example")])?;
        ensure!(status == 403 && answer.contains("[dashboard] hosts"), "{path}: {answer}");
    }
    ensure!(get("/readyz", &[("Host", "probe.example")])?.0 == 200, "probes name hosts as they like");

    let mut without = market.config.clone();
    without.dashboard.enabled = false;
    without.kafka.group = stage.unique("group");
    without.namespace = format!("{}:", stage.unique("other"));
    let mut worker = Worker::start(&without)?;
    worker.wait_ready()?;
    ensure!(worker.page("/")?.0 == 404, "it is switched off");
    Ok(())
}

fn every_worker_shows_the_whole_group(stage: &Stage) -> anyhow::Result<()> {
    let mut market = market(stage, 4)?;
    market.put_rule("ALERT", "level", ">=", START_PRICE, "alice")?;
    let workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.send((0..40).map(|n| tick("ALERT", 200, n)))?;
    market.wait_delivered()?;
    let page = Page::start(&market.config, &[])?;
    for address in [workers[0].http(), workers[1].http(), page.address] {
        let mut live = Live::open(address, "/api/overview")?;
        live.until("all partitions and both owners", |live| {
            let mut owners = live.owners();
            let all = owners.len();
            owners.sort_unstable();
            owners.dedup();
            all == 4 && owners.len() == 2 && live.view["workers"].as_object().is_some_and(|w| w.len() == 2)
        })?;
        live.until("the lag and the last price", |live| {
            live.view["numbers"]["lag"]["value"] == 0 && live.view["symbols"]["rows"]["ALERT"]["price"] == "200"
        })?;
        live.until("the notifications", |live| live.notes.iter().any(|note| note["rule"] == "alice"))?;
        live.until("the members' hosts", |live| {
            live.view["workers"].as_object().is_some_and(|w| w.values().all(|w| w["host"].is_string()))
        })?;
        ensure!(
            live.view["verdict"]["title"].as_str().is_some_and(|title| title.starts_with("Working; ")),
            "{:#}",
            live.view["verdict"]
        );
        ensure!(!live.view.to_string().contains("token"), "who has the token can write as the owner");
    }
    let mut symbol = Live::open(page.address, "/api/symbol?symbol=ALERT&interval=1s")?;
    symbol.until("its rule and its candle", |live| {
        live.view["rules"]["level >= alice"]["threshold"] == "100"
            && live.view["candles"].as_object().is_some_and(|c| c.values().any(|c| c[6] == "open"))
    })
}

fn who_comes_back_goes_on_where_it_was(stage: &Stage) -> anyhow::Result<()> {
    let market = market(stage, 1)?;
    let workers = start(&market, 1)?;
    let mut live = Live::open(workers[0].http(), "/api/overview")?;
    ensure!(live.next()?, "the first is the whole view");
    live.until("something to see", |live| live.view["verdict"].is_object())?;
    ensure!(!live.next()?, "then come differences");
    let (last, view) = (live.last.clone(), live.view.clone());
    drop(live);
    thread::sleep(Duration::from_millis(1_500));
    let mut again = Live::resume(workers[0].http(), "/api/overview", &last)?;
    again.view = view;
    ensure!(!again.next()?, "what it missed, not all of it");
    let mut first = Live::open(workers[0].http(), "/api/overview")?;
    first.until("the same second", |first| first.view["now"].as_i64() > again.view["now"].as_i64())?;
    again.until("the same second", |again| again.view["now"] == first.view["now"])?;
    ensure!(again.view["partitions"]["0"]["epoch"] == first.view["partitions"]["0"]["epoch"]);
    let mut stranger = Live::resume(workers[0].http(), "/api/overview", "0badcafe-7")?;
    ensure!(stranger.next()?, "an event of another process");
    Ok(())
}

fn a_reader_that_does_not_read_holds_nobody_up(stage: &Stage) -> anyhow::Result<()> {
    let market = market(stage, 1)?;
    let workers = start(&market, 1)?;
    let _deaf: Vec<Live> =
        (0..20).map(|_| Live::open(workers[0].http(), "/api/overview")).collect::<Result<_, _>>()?;
    let mut live = Live::open(workers[0].http(), "/api/overview")?;
    market.send((0..400).map(|n| tick("BUSY", 200, n)))?;
    market.wait_delivered()?;
    live.until("the ticks", |live| live.view["partitions"]["0"]["position"].as_i64() >= Some(400))?;
    let from = Instant::now();
    for _ in 0..5 {
        live.next()?;
    }
    ensure!(from.elapsed() < Duration::from_secs(10), "five frames took {:?}", from.elapsed());
    Ok(())
}

fn a_worker_that_dies_is_seen_and_so_is_where_its_partitions_go(stage: &Stage) -> anyhow::Result<()> {
    let market = market(stage, 4)?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.send((0..80).map(|n| tick(&format!("S-{}", n % 8), 200, n)))?;
    market.wait_delivered()?;
    let mut live = Live::open(workers[0].http(), "/api/overview")?;
    live.until("both workers", |live| live.view["workers"].as_object().is_some_and(|w| w.len() == 2))?;
    let mut dying = workers.remove(1);
    let is_its = |name: &str| name.contains(&format!("-{}-", dying.pid()));
    let name = live.owners().into_iter().find(|owner| is_its(owner)).context("it owns some")?.to_owned();
    dying.kill()?;
    live.until("its silence", |live| live.view["workers"][&name]["life"] == "silent")?;
    live.until("its end", |live| live.view["workers"][&name]["life"] == "gone")?;
    live.until("where its partitions went", |live| {
        let lost = live.view["workers"][&name]["lost"].as_object();
        lost.is_some_and(|lost| {
            lost.len() == 2 && lost.values().all(|to| to.as_str().is_some_and(|to| !to.is_empty()))
        })
    })?;
    ensure!(
        live.view["verdict"]["title"] == format!("{name} is gone; its partitions have moved"),
        "{:#}",
        live.view["verdict"]
    );
    let rows = live.view["partitions"].as_object().context("rows")?;
    let moved = rows
        .values()
        .filter(|row| row["hold"] == "moved" && row["reason"].as_str().is_some_and(|r| r.contains(&name)));
    ensure!(moved.count() == 2, "{rows:#?}");
    let story = live.view["story"].to_string();
    ensure!(story.contains("gave its last sign of life") && story.contains("claims "), "{story}");
    Ok(())
}

fn rules_are_written_where_it_is_allowed_and_from_the_page_only(stage: &Stage) -> anyhow::Result<()> {
    let market = market(stage, 1)?;
    let [open, closed] = [&["--allow-writes"][..], &[]].map(|arguments| Page::start(&market.config, arguments));
    let (open, closed) = (open?, closed?);
    let rule = json!({"symbol": "BTC/USDT", "id": "alice 1", "trigger": "edge", "op": ">=", "threshold": "97500.5", "cooldown": "5m"});
    let own = [("x-tickwatch", "1"), ("content-type", "application/json")];
    let put = |page: &Page, headers: &[(&str, &str)]| {
        call(page.address, "POST", "/api/rules", headers, &rule.to_string())
    };
    let mut redis = market.redis()?;
    let key = market.key("rules:BTC/USDT:edge");

    let (status, answer) = put(&closed, &own)?;
    ensure!(status == 403 && answer.contains("read-only") && answer.contains("--allow-writes"), "{answer}");
    let origin = format!("http://{}", open.address);
    for (headers, why) in [
        (vec![own[1]], "without the page's header"),
        (vec![own[0]], "not as JSON"),
        (vec![own[0], ("content-type", "text/plain")], "as a form sends it"),
        (vec![own[0], own[1], ("origin", "http://evil.example")], "from another site"),
        (vec![own[0], own[1], ("origin", &origin), ("sec-fetch-site", "cross-site")], "from another site"),
        (vec![own[0], own[1], ("host", "evil.example")], "under another name"),
    ] {
        let (status, answer) = put(&open, &headers)?;
        ensure!((400..500).contains(&status), "{why}: {answer}");
        ensure!(redis.zcard::<_, u64>(&key)? == 0, "{why}: it was written");
    }
    let (status, answer) = put(&open, &[own[0], own[1], ("origin", &origin), ("sec-fetch-site", "same-origin")])?;
    ensure!(status == 200 && answer.contains(r#""done":"added""#), "{answer}");
    ensure!(redis.zscore::<_, _, Option<f64>>(&key, ">= alice 1")? == Some(97_500.5));
    ensure!(put(&open, &own)?.1.contains(r#""done":"changed""#), "it was there");

    let mut live = Live::open(open.address, "/api/symbol?symbol=BTC%2FUSDT")?;
    live.until("the rule with its cooldown", |live| live.view["rules"]["edge >= alice 1"]["cooldown"] == 300_000)?;
    let bad = json!({"symbol": "BTC/USDT", "id": "x", "trigger": "edge", "op": "!=", "threshold": "1"}).to_string();
    let (status, answer) = call(open.address, "POST", "/api/rules", &own, &bad)?;
    ensure!(status == 422 && answer.contains("is no operator"), "{answer}");

    let name = json!({"symbol": "BTC/USDT", "id": "alice 1"}).to_string();
    let remove = |page: &Page| call(page.address, "DELETE", "/api/rules", &own, &name);
    ensure!(remove(&closed)?.0 == 403);
    ensure!(remove(&open)?.0 == 200 && redis.zcard::<_, u64>(&key)? == 0);
    live.until("its removal", |live| live.view["rules"].as_object().is_some_and(serde_json::Map::is_empty))?;
    let (status, answer) = remove(&open)?;
    ensure!(status == 404 && answer.contains("has no rule"), "{answer}");
    Ok(())
}

fn while_nobody_looks_nothing_is_asked(stage: &Stage) -> anyhow::Result<()> {
    let redis = private_redis()?;
    let market = Market::open(stage, 1, |config| config.redis.url = redis.url())?;
    let mut page = Page::start(&market.config, &[])?;
    let mut admin = market.redis()?;
    let mut calls = || -> anyhow::Result<i64> {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut admin)?;
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        Ok(line.context("no such line")?.trim().parse()?)
    };
    let before = calls()?;
    ensure!(call(page.address, "GET", "/", &[], "")?.0 == 200);
    thread::sleep(Duration::from_millis(500));
    ensure!(calls()? - before <= 1, "the page itself asks Redis for nothing");
    let mut live = Live::open(page.address, "/api/overview")?;
    live.until("a verdict", |live| live.view["verdict"].is_object())?;
    ensure!(calls()? - before > 2, "a reader makes it look");
    drop(live);
    wait_until(SETTLED, "the looking to end", || {
        let before = calls().unwrap_or_default();
        thread::sleep(Duration::from_secs(1));
        calls().is_ok_and(|after| after - before <= 1)
    })?;
    let mut waiting = Live::open(page.address, "/api/overview")?;
    waiting.next()?;
    page.process.signal(Signal::TERM)?;
    wait_until(SETTLED, "the page to end although somebody looks", || {
        page.process.exit_status().is_ok_and(|ended| ended.is_some_and(|status| status.success()))
    })
}

/// Measured on a machine that does nothing else: `TW_TEST_STRICT=1`, and `TW_TEST_PROGRAM` naming a release build.
fn two_hundred_pages_cost_less_than_a_tenth_of_a_core(stage: &Stage) -> anyhow::Result<()> {
    const PAGES: usize = 200;
    const SECONDS: u64 = 20;
    const A_SECOND: i64 = 5_000;
    const PORTION: i64 = A_SECOND / 10;
    if std::env::var_os("TW_TEST_STRICT").is_none() {
        return Err(skip(
            "a measurement, for a quiet machine: set TW_TEST_STRICT=1 (and TW_TEST_PROGRAM to a release build)",
        ));
    }
    let mut market = market(stage, 4)?;
    for number in 0..20 {
        market.put_rule(&format!("S-{number}"), "level", ">=", START_PRICE, "all")?;
    }
    let _workers = start(&market, 1)?;
    let page = Page::start(&market.config, &[])?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..PAGES)
            .map(|_| {
                let mut live = Live::open(page.address, "/api/overview")?;
                Ok(scope.spawn(|| {
                    let mut frames = 0_u64;
                    while !done.load(Ordering::Relaxed) && live.next().is_ok() {
                        frames += 1;
                    }
                    drop(live);
                    frames
                }))
            })
            .collect::<anyhow::Result<_>>()?;
        let measured = || -> anyhow::Result<f64> {
            let (before, from) = (cpu_seconds(page.process.pid())?, Instant::now());
            for portion in 0..SECONDS as i64 * A_SECOND / PORTION {
                market.send((0..PORTION).map(|n| tick(&format!("S-{}", n % 20), 200, portion * 100 + n / 5)))?;
                let due = from + Duration::from_millis(100 * (portion as u64 + 1));
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok((cpu_seconds(page.process.pid())? - before) / from.elapsed().as_secs_f64())
        };
        let cores = measured();
        done.store(true, Ordering::Relaxed);
        let frames: u64 = readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).sum();
        let cores = cores?;
        println!("{PAGES} pages, {A_SECOND} ticks/s that all fire: {cores:.3} of a core, {frames} events sent");
        ensure!(cores < 0.1, "{cores:.3} of a core");
        Ok(())
    })
}

/// Processor time that a process has used, s.
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().context("no fields")?.split(' ').collect();
    let [user, system] =
        [11, 12].map(|at| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default());
    Ok((user + system) / TICKS_A_SECOND)
}
