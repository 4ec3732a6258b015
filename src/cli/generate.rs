//! `tickwatch generate`: made-up ticks as load. Prices walk at random from a seed, event time is now.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stderr};
use std::num::{NonZeroI32, NonZeroU32};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::sender::Sender;
use crate::config::Config;
use crate::kafka::topics;

/// First price of every symbol, hundredths.
const FIRST_PRICE: u32 = 10_000;

/// Furthest a price goes in one tick, hundredths.
const STEP: u32 = 5;

/// Records between two looks at the clock.
const BURST: u64 = 100;

/// Arguments of `generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch generate --rate 200 --seconds 60             # 200 ticks a second for a minute\n  \
    tickwatch generate --rate 0 --symbols 1000             # as fast as Kafka takes them")]
pub struct Args {
    /// Ticks a second; 0: as fast as Kafka takes them
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    rate: u64,
    /// Number of symbols, S00000 and up
    #[arg(long, default_value_t = NonZeroU32::MIN.saturating_add(9), value_name = "N")]
    symbols: NonZeroU32,
    /// How long to go on
    #[arg(long, default_value_t = 10, value_name = "N")]
    seconds: u64,
    /// Seed of the random walk: the same seed, the same prices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Make the topic with this many partitions first, if it is not there
    #[arg(long, value_name = "N")]
    partitions: Option<NonZeroI32>,
}

/// Sends ticks at the rate until the time is over, then says how many Kafka took and how fast.
pub async fn run(config: Config, args: Args) -> anyhow::Result<()> {
    if let Some(partitions) = args.partitions {
        topics::create(&config.kafka, &config.kafka.topic, partitions.get()).await?;
    }
    let sender = Sender::new(&config.kafka)?;
    let start = Instant::now();
    let acknowledged = tokio::task::spawn_blocking(move || send_ticks(sender, &args, start)).await??;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("sent {acknowledged} ticks in {seconds:.1} s, {:.0} a second", acknowledged as f64 / seconds);
    Ok(())
}

fn send_ticks(mut sender: Sender, args: &Args, start: Instant) -> anyhow::Result<u64> {
    let mut market = Market::new(args.symbols, args.seed);
    let duration = Duration::from_secs(args.seconds);
    let progress = progress(args.seconds);
    let mut value = String::new();
    while start.elapsed() < duration && !sender.is_interrupted() {
        let now = now_ms();
        for _ in 0..allowed(args.rate, start.elapsed(), sender.sent()) {
            let symbol = market.tick(now, &mut value);
            sender.send(Some(symbol.as_bytes()), value.as_bytes())?;
        }
        progress.set_position(start.elapsed().as_secs());
        if args.rate > 0 {
            std::thread::sleep(Duration::from_millis(1)); // sets the pace: what is due then is sent in one go
        }
    }
    progress.finish_and_clear();
    sender.finish()
}

/// How many ticks may be sent now, so that `rate` a second holds on the whole.
fn allowed(rate: u64, elapsed: Duration, sent: u64) -> u64 {
    if rate == 0 {
        return BURST;
    }
    let due = u128::from(rate) * elapsed.as_millis() / 1_000;
    (due as u64).saturating_sub(sent)
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Symbols and their prices.
struct Market {
    random: StdRng,
    symbols: Vec<(String, u32)>,
}

impl Market {
    fn new(symbols: NonZeroU32, seed: u64) -> Market {
        let symbols = (0..symbols.get()).map(|i| (format!("S{i:05}"), FIRST_PRICE)).collect();
        Market { random: StdRng::seed_from_u64(seed), symbols }
    }

    /// The next tick, written over `value`; returns its symbol.
    fn tick(&mut self, now: u128, value: &mut String) -> &str {
        let symbol = self.random.random_range(0..self.symbols.len());
        let step = self.random.random_range(0..=2 * STEP);
        let volume = self.random.random_range(1..=1_000_u32);
        let (symbol, price) = &mut self.symbols[symbol];
        *price = (*price + step).saturating_sub(STEP).max(1);
        let (whole, hundredths) = (*price / 100, *price % 100);
        value.clear();
        write!(value, r#"{{"symbol":"{symbol}","price":{whole}.{hundredths:02},"volume":{volume},"ts":{now}}}"#)
            .unwrap_or_default(); // a String takes every write
        symbol
    }
}

/// A bar over the seconds; nothing in a pipe.
fn progress(seconds: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} s");
    ProgressBar::new(seconds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(seed: u64) -> Vec<String> {
        let mut market = Market::new(NonZeroU32::new(3).unwrap(), seed);
        let mut value = String::new();
        (0..1_000).map(|now| (market.tick(now, &mut value), value.clone()).1).collect()
    }

    #[test]
    fn the_same_seed_makes_the_same_ticks() {
        assert_eq!(ticks(1), ticks(1));
        assert_ne!(ticks(1), ticks(2));
    }

    #[test]
    fn every_tick_is_a_record_with_a_positive_price() {
        for tick in ticks(7) {
            let tick: serde_json::Value = serde_json::from_str(&tick).unwrap();
            assert!(tick["price"].as_f64().unwrap() > 0.0);
            assert!(tick["symbol"].as_str().unwrap().starts_with("S0000"));
        }
    }

    #[test]
    fn the_rate_holds_on_the_whole() {
        assert_eq!(allowed(1_000, Duration::from_millis(500), 0), 500);
        assert_eq!(allowed(1_000, Duration::from_millis(500), 480), 20);
        assert_eq!(allowed(1_000, Duration::from_millis(500), 600), 0);
        assert_eq!(allowed(0, Duration::ZERO, 1_000_000), BURST);
    }
}
