//! `tickwatch tail`: the output topics as their readers see them, record by record.

mod line;

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstream::AutoStream;
use anyhow::{Context as _, Result};
use clap::ValueEnum;
use rdkafka::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::run::stop_signal;
use crate::config::Config;
use crate::kafka::TopicRole;
use crate::kafka::follow::{Begin, Follower};
use crate::kafka::topics;

/// How late a stop is noticed at most, and a reader that is gone.
const WAIT: Duration = Duration::from_millis(100);
/// How long what is under way may take after Ctrl-C: a reader that does not read holds nothing up.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Follow the notifications or the candles as they are sent
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tickwatch tail notifications                           # from now on, one line a record\n  \
    tickwatch tail notifications --symbol BBCA --limit 1   # wait for the next one of a symbol\n  \
    tickwatch tail candles --from-start | jq -c 'select(.interval == \"1m\")'\n\n\
    Only what is committed is shown; no group is joined, and nothing is committed. In a pipe, and with --json, each \
    line is the record's JSON as it is. Ctrl-C ends it.")]
pub(super) struct Args {
    /// What to follow
    output: Output,
    /// Begin at the oldest record still there, not at what comes from now on
    #[arg(long)]
    from_start: bool,
    /// Only this symbol's; may be given again for more symbols
    #[arg(long, value_name = "SYMBOL")]
    symbol: Vec<String>,
    /// End after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// The records' JSON on a terminal too
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// What the rules fired: [output] notifications
    Notifications,
    /// Final and revised candles: [output] candles
    Candles,
}

impl Output {
    fn topic(self, config: &Config) -> &str {
        match self {
            Output::Notifications => &config.output.notifications,
            Output::Candles => &config.output.candles,
        }
    }

    fn role(self) -> TopicRole {
        match self {
            Output::Notifications => TopicRole::Notifications,
            Output::Candles => TopicRole::Candles,
        }
    }
}

/// Follows the topic until the limit, Ctrl-C, or the end of who reads the lines.
pub(super) async fn run(config: Config, args: Args) -> Result<()> {
    let topic = args.output.topic(&config).to_owned();
    topics::check(&config.kafka, &[(&topic, args.output.role())]).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let signal = stop_signal()?;
    let following = {
        let stop = Arc::clone(&stop);
        tokio::task::spawn_blocking(move || follow(&config, &topic, &args, &stop))
    };
    let told = async {
        signal.await;
        stop.store(true, Ordering::Relaxed);
        tokio::time::sleep(LAST_LINES).await;
    };
    tokio::select! {
        followed = following => match followed.context("reading the topic")? {
            Err(error) if is_broken_pipe(&error) => Ok(()),
            followed => followed,
        },
        () = told => Ok(()),
    }
}

fn follow(config: &Config, topic: &str, args: &Args, stop: &AtomicBool) -> Result<()> {
    let begin = if args.from_start { Begin::Start } else { Begin::Now };
    let mut follower = Follower::start(&config.kafka, topic, begin)?;
    let from = if args.from_start { "its start" } else { "now" };
    tracing::info!("following topic {topic} from {from} on; Ctrl-C ends it");
    let readable = io::stdout().is_terminal() && !args.json;
    let mut out: BufWriter<Box<dyn Write>> =
        BufWriter::new(if readable { Box::new(AutoStream::auto(io::stdout())) } else { Box::new(io::stdout()) });
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let next = if let Some(message) = follower.next(Duration::ZERO)? {
            Some(message)
        } else {
            out.flush()?;
            if is_nobody_there() {
                break;
            }
            follower.next(WAIT)?
        };
        let Some(message) = next else { continue };
        let key = message.key().unwrap_or_default();
        if !args.symbol.is_empty() && !args.symbol.iter().any(|symbol| symbol.as_bytes() == key) {
            continue;
        }
        let value = message.payload().unwrap_or_default();
        match args.output {
            _ if !readable => {
                out.write_all(value)?;
                out.write_all(b"\n")?;
            }
            Output::Notifications => writeln!(out, "{}", line::of_notification(value))?,
            Output::Candles => writeln!(out, "{}", line::of_candle(value))?,
        }
        left -= 1;
    }
    Ok(out.flush()?)
}

/// Whether the other end of standard output is closed: while no record comes, no write would tell.
fn is_nobody_there() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&at_once)).is_ok() && watched[0].revents().contains(PollFlags::ERR)
}

/// A reader that has seen enough (`| head`) is no error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
