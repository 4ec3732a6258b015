//! `tickwatch`: parse, start the log, dispatch. Everything else is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use tickwatch::cli::{self, Cli};

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads can be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(cli::run(Cli::parse()));
    // A call into librdkafka that still waits for a broker must not hold the process up.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", cli::describe(&error));
            cli::exit_code(&error)
        }
    }
}
