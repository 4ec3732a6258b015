//! `tickwatch`: parse, start the log, dispatch. Everything else is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use tickwatch::cli::{self, Cli};

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", cli::describe(&error));
            cli::exit_code(&error)
        }
    }
}
