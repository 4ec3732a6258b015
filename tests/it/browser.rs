//! The live page in a real browser: headless Chromium, steered through chromedriver. With `TW_TEST_PICTURES` naming a
//! folder, what it looked like is kept there.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tickwatch::sandbox::Process;

use crate::dashboard::Page;
use crate::harness::{Case, Needs, Stage, cases, free_address, skip, wait_until};
use crate::market::{Market, SETTLED, start, tick, wait_shared};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        a_worker_that_dies_is_seen_on_the_page_and_ownership_is_seen_to_move,
        both_views_fit_every_size_in_light_and_in_dark,
        a_rule_is_added_changed_and_removed_on_the_page,
    )
}

const PICTURES: &str = "TW_TEST_PICTURES";
/// Widths of a wide screen, a small one and a phone.
const SIZES: [(u32, u32); 3] = [(1600, 1200), (1024, 1200), (390, 844)];

/// One browser with one window. It ends with this.
struct Browser {
    session: String,
    agent: ureq::Agent,
    _driver: Process,
    _directory: TempDir,
}

impl Browser {
    /// Starts one, or says what this machine lacks.
    fn start(width: u32, height: u32) -> anyhow::Result<Browser> {
        for program in ["chromium", "chromedriver"] {
            if Command::new(program).arg("--version").output().is_err() {
                return Err(skip(format!(
                    "{program} is missing; as root: apt-get install chromium chromium-driver (or make install-browser)"
                )));
            }
        }
        let directory = tempfile::Builder::new().prefix("tickwatch-browser-").tempdir()?;
        let address = free_address()?;
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={}", address.port()));
        let driver = Process::start(&command, &directory.path().join("log"))?;
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(90)))
            .http_status_as_error(false)
            .build()
            .into();
        let url = format!("http://{address}");
        wait_until(SETTLED, "chromedriver", || agent.get(format!("{url}/status")).call().is_ok())?;
        // No sandbox: tests run as root in containers, where it cannot be had; only this page is ever opened.
        let mut options = json!({ "args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            format!("--window-size={width},{height}"), format!("--user-data-dir={}", directory.path().join("profile").display()),
        ]});
        if width < 500 {
            options["mobileEmulation"] =
                json!({ "deviceMetrics": { "width": width, "height": height, "pixelRatio": 1.0 } });
        }
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let mut browser =
            Browser { session: format!("{url}/session"), agent, _driver: driver, _directory: directory };
        let made = browser.post("", &wanted)?;
        let id = made["sessionId"].as_str().context("chromedriver made no session")?;
        browser.session = format!("{url}/session/{id}");
        Ok(browser)
    }

    fn post(&self, command: &str, body: &Value) -> anyhow::Result<Value> {
        let answer = self.agent.post(format!("{}{command}", self.session)).send(body.to_string());
        let text = answer.context("chromedriver")?.body_mut().with_config().limit(64 << 20).read_to_string()?;
        let answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["value"].get("error").is_none(), "{command} {body}: {}", answer["value"]["message"]);
        Ok(answer["value"].clone())
    }

    fn open(&self, url: &str) -> anyhow::Result<()> {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// What a script in the page answers.
    fn ask(&self, script: &str) -> anyhow::Result<Value> {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    fn wait_for(&self, what: &str, condition: &str) -> anyhow::Result<()> {
        let waited =
            wait_until(SETTLED, what, || self.ask(&format!("return ({condition})")).is_ok_and(|is| is == true));
        waited.with_context(|| {
            let text = self.ask("return document.body.innerText").unwrap_or_default();
            format!("the page says: {}", text.as_str().unwrap_or_default())
        })
    }

    /// Keeps a picture, where one is wanted.
    fn picture(&self, name: &str) -> anyhow::Result<()> {
        let Some(folder) = std::env::var_os(PICTURES) else { return Ok(()) };
        let whole = json!({ "cmd": "Page.captureScreenshot", "params": { "captureBeyondViewport": false } });
        let taken = self.post("/goog/cdp/execute", &whole)?;
        let base64 = taken["data"].as_str().context("no picture")?;
        std::fs::write(PathBuf::from(folder).join(format!("{name}.png")), BASE64_STANDARD.decode(base64)?)?;
        Ok(())
    }

    /// Fails with what the browser complained of: errors of scripts, files refused by the policy.
    fn no_complaints(&self) -> anyhow::Result<()> {
        let log = self.post("/se/log", &json!({ "type": "browser" }))?;
        let bad: Vec<&Value> =
            log.as_array().into_iter().flatten().filter(|line| line["level"] == "SEVERE").collect();
        ensure!(bad.is_empty(), "{bad:?}");
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.agent.delete(&self.session).call(); // its windows end with the session
    }
}

fn a_worker_that_dies_is_seen_on_the_page_and_ownership_is_seen_to_move(stage: &Stage) -> anyhow::Result<()> {
    let browser = Browser::start(1600, 1200)?;
    let market = Market::open(stage, 4, |_| ())?;
    let mut workers = start(&market, 2)?;
    wait_shared(&market, &workers)?;
    market.send((0..80).map(|n| tick(&format!("S-{}", n % 8), 200, n)))?;
    market.wait_delivered()?;
    browser.open(&format!("http://{}/", workers[0].http()))?;
    let mut dying = workers.remove(1);
    let of = |pid: u32| {
        format!("[...document.querySelectorAll('#parts .c-own')].filter(e => e.title.includes('-{pid}-')).length")
    };
    browser.wait_for("both workers", &format!("{} === 2 && {} === 2", of(dying.pid()), of(workers[0].pid())))?;
    browser.wait_for("two lanes", "document.querySelectorAll('.lane').length === 2")?;
    dying.kill()?;
    browser.wait_for("a lane that is struck out", "document.querySelectorAll('.lane.dead').length === 1")?;
    browser.wait_for("ownership to move", &format!("{} === 4", of(workers[0].pid())))?;
    browser.wait_for("rows that say so", "document.querySelectorAll('#parts tr.m').length === 2")?;
    browser.wait_for(
        "the verdict",
        "/ is gone; its partitions have moved$/.test(document.querySelector('#vh').textContent)",
    )?;
    browser.wait_for(
        "what happened",
        "/last sign of life[^]*claims /.test(document.querySelector('#story').textContent)",
    )?;
    browser.picture("takeover-1600-light")?;
    browser.no_complaints()
}

fn both_views_fit_every_size_in_light_and_in_dark(stage: &Stage) -> anyhow::Result<()> {
    let browsers = SIZES.map(|(width, height)| Browser::start(width, height).map(|browser| (width, browser)));
    let mut market =
        Market::open(stage, 3, |config| config.candles.intervals = vec!["1s".parse().expect("an interval")])?;
    market.put_rule("BTC/USDT:USDT", "level", ">=", 20_000, "desk-7")?;
    let workers = start(&market, 1)?;
    market.send(
        (0..400).map(|n| tick(["BTC/USDT:USDT", "币安人生USDT", "ES=F"][n as usize % 3], 195 + n % 10, n * 40)),
    )?;
    market.wait_delivered()?;
    let url = format!("http://{}", workers[0].http());
    for browser in browsers {
        let (width, browser) = browser?;
        for (name, path, there) in [
            (
                "overview",
                "/",
                "document.querySelectorAll('#syms tbody tr').length === 3 && document.querySelector('.n')",
            ),
            (
                "symbol",
                "/symbols/BTC/USDT:USDT",
                "document.querySelectorAll('#ct tbody tr').length > 3 && document.querySelector('#rules td')",
            ),
        ] {
            for theme in ["light", "dark"] {
                browser.open(&format!("{url}/assets/page.css"))?; // of this origin, and no page that runs
                browser.ask(&format!("localStorage.setItem('theme', '{theme}')"))?;
                browser.open(&format!("{url}{path}"))?;
                browser.wait_for("data on the page", &format!("!!({there})"))?;
                let overflow = browser.ask("return document.documentElement.scrollWidth - innerWidth")?;
                ensure!(overflow.as_i64() <= Some(0), "{name} at {width} in {theme} is {overflow} px too wide");
                let colours = "getComputedStyle(document.body).backgroundColor";
                let background = browser.ask(&format!("return {colours}"))?;
                ensure!((background == "rgb(11, 12, 14)") == (theme == "dark"), "{theme}: {background}");
                browser.picture(&format!("{name}-{width}-{theme}"))?;
            }
        }
        browser.no_complaints()?;
    }
    Ok(())
}

fn a_rule_is_added_changed_and_removed_on_the_page(stage: &Stage) -> anyhow::Result<()> {
    let browser = Browser::start(1600, 1200)?;
    let market = Market::open(stage, 1, |_| ())?;
    let _workers = start(&market, 1)?;
    market.send((0..40).map(|n| tick("BBCA", 100 + n % 5, n * 50)))?;
    market.wait_delivered()?;
    let page = Page::start(&market.config, &["--allow-writes"])?;
    browser.open(&format!("http://{}/symbols/BBCA", page.address))?;
    browser.wait_for("the form", "!document.querySelector('#add').disabled")?;
    browser.ask("const f = document.querySelector('#form'); f.elements.th.value = '103'; f.elements.id.value = 'carol'; f.elements.cd.value = '5m'; f.dispatchEvent(new Event('input', {bubbles: true}))")?;
    browser.wait_for("what it will do, in words", "/at or above 103 and the one before was below. At most once in 5m/.test(document.querySelector('#plain').textContent)")?;
    browser.ask("document.querySelector('#add').click()")?;
    browser.wait_for("the rule", "/carol[^]*≥[^]*103/.test(document.querySelector('#rules tbody').textContent)")?;
    browser.wait_for("its handle", "document.querySelector('.pill')?.getAttribute('aria-valuenow') === '103'")?;
    browser.ask("const p = document.querySelector('.pill'); p.focus(); for (const key of ['ArrowUp', 'Enter']) p.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))")?;
    browser.wait_for("it to move", "document.querySelector('.pill')?.getAttribute('aria-valuenow') === '104'")?;
    browser.wait_for("the answer", "/carol: changed/.test(document.querySelector('#said').textContent)")?;
    browser.ask("const b = document.querySelector('[aria-label=\"Remove carol\"]'); b.click(); b.click()")?;
    browser.wait_for("it to be gone", "document.querySelectorAll('#rules tbody tr').length === 0")?;
    browser.no_complaints()
}
