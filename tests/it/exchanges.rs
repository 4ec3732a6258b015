//! Candles of real trades through the whole service, held against the candles that the exchanges themselves published
//! for them: every bar, every number, exactly.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tickwatch::config::Numbers;

use crate::harness::{Case, Message, Needs, Stage, cases, skip};
use crate::scene::{Scene, exact};

pub(crate) fn cases() -> Vec<Case> {
    cases!(Needs::Both;
        krakens_own_candles_come_out_of_its_trades_whatever_the_batches,
        binances_own_candles_come_out_of_its_trades_whatever_the_batches,
        candles_come_out_the_same_where_the_run_is_cut_in_pieces,
    )
}

const KRAKEN: &str = "kraken-xbtusdt-2025-11";
const BINANCE: &str = "binance-btcusdt-2020-09";

/// Ticks in a batch at most.
const BATCHES: [u32; 3] = [1, 37, 20_000];

/// Open, high, low, close, volume, count by start, ms.
type Bars = BTreeMap<i64, ([i128; 5], u64)>;

fn krakens_own_candles_come_out_of_its_trades_whatever_the_batches(stage: &Stage) -> anyhow::Result<()> {
    let published = published(KRAKEN)?;
    let with_trades = published.values().filter(|(_, count)| *count > 0).count();
    assert_eq!((published.len(), with_trades), (409, 272), "as the data's own notes say");
    whatever_the_batches(stage, KRAKEN, &published)
}

fn binances_own_candles_come_out_of_its_trades_whatever_the_batches(stage: &Stage) -> anyhow::Result<()> {
    let published = published(BINANCE)?;
    assert_eq!(published.len(), 3, "as the data's own notes say");
    whatever_the_batches(stage, BINANCE, &published)
}

fn whatever_the_batches(stage: &Stage, market: &str, published: &Bars) -> anyhow::Result<()> {
    for batch in BATCHES {
        let scene = Scene::with(stage, 1, |config| config.worker.max_batch = batch)?;
        scene.send(trades(market)?)?;
        let summary = scene.run_until_end()?;
        assert_eq!((summary.ticks, summary.late, summary.dead_letters), (1000, 0, 0));
        assert_equal_bars(&computed(&scene)?, published, &format!("{market} in batches of {batch}"));
    }
    Ok(())
}

fn candles_come_out_the_same_where_the_run_is_cut_in_pieces(stage: &Stage) -> anyhow::Result<()> {
    let published = published(BINANCE)?;
    let scene = Scene::with(stage, 1, |config| {
        config.worker.max_batch = 10;
        config.output.numbers = Numbers::String;
    })?;
    let trades = trades(BINANCE)?;
    for piece in trades.chunks(400) {
        let worker = scene.start();
        let sent = scene.send(piece.iter().cloned())?;
        let last = sent.last().context("a piece is not empty")?.1;
        scene.wait_for_source(0, "next_offset", &(last + 1).to_string())?;
        worker.stop()?;
    }
    scene.run_until_end()?;
    assert_equal_bars(&computed(&scene)?, &published, "in pieces");
    Ok(())
}

/// Every published bar is there, and where the exchange saw no trade there is no candle. Candles at either end of the
/// trades, whose bars the exchange counted with more trades than are here, are not compared.
fn assert_equal_bars(computed: &Bars, published: &Bars, what: &str) {
    let (first, last) = (published.keys().min(), published.keys().max());
    let within = first.copied().unwrap_or_default()..=last.copied().unwrap_or_default();
    let found: Bars = computed.range(within).map(|(start, bar)| (*start, *bar)).collect();
    let expected: Bars =
        published.iter().filter(|(_, (_, count))| *count > 0).map(|(start, bar)| (*start, *bar)).collect();
    for (start, bar) in &expected {
        assert_eq!(found.get(start), Some(bar), "{what}: the bar at {start}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// The candles that were sent; each of them once.
fn computed(scene: &Scene) -> anyhow::Result<Bars> {
    let mut bars = Bars::new();
    for candle in scene.candle_list()? {
        let numbers = [&candle.open, &candle.high, &candle.low, &candle.close, &candle.volume];
        let numbers = numbers.map(|number| exact(number.get()));
        assert_eq!((candle.status.as_str(), candle.end - candle.start), ("final", 60_000), "{candle}");
        assert!(bars.insert(candle.start, (numbers, candle.count)).is_none(), "{candle} is there twice");
    }
    Ok(bars)
}

/// The exchange's trades, in published order.
fn trades(market: &str) -> anyhow::Result<Vec<Message>> {
    let lines = read(&data_folder().join(market).join("ticks.jsonl"))?;
    Ok(lines.lines().map(|line| Message::from(("trades", line))).collect())
}

/// The exchange's candles.
fn published(market: &str) -> anyhow::Result<Bars> {
    let lines = read(&data_folder().join(market).join("candles-1m.csv"))?;
    let bar = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let numbers = [1, 2, 3, 4, 5].map(|field| exact(fields[field]));
        Ok((fields[0].parse()?, (numbers, fields[6].parse()?)))
    };
    lines.lines().skip(1).map(bar).collect()
}

/// Where the exchanges' data lies beside the project.
pub(crate) fn data_folder() -> PathBuf {
    std::env::var_os("TW_TEST_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from)
}

/// The text of a data file, or a skip where this machine has none.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|_| skip(format!("there is no {}; set TW_TEST_DATA", path.display())))
}
