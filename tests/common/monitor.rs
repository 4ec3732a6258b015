//! What a Redis was asked to do, command by command (MONITOR).

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};

/// Commands that tests send themselves and the program never does.
pub(crate) const IS_OF_TEST: [&str; 6] = ["HGET", "XLEN", "HMGET", "ZADD", "PING", "AUTH"];

/// A running MONITOR.
pub(crate) struct Monitor {
    connection: TcpStream,
    reader: JoinHandle<std::io::Result<Vec<Line>>>,
}

/// One command.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Called by a script, not by a client. A script's own call stands before the commands it makes.
    pub(crate) by_script: bool,
    /// In capitals.
    pub(crate) command: String,
    /// The whole line.
    pub(crate) text: String,
}

impl Monitor {
    /// Starts recording; returns once the server does.
    pub(crate) fn start(port: u16) -> anyhow::Result<Monitor> {
        let (connection, lines) = open(port)?;
        let reader = std::thread::spawn(move || {
            let mut found = Vec::new();
            each_line(lines, |line| found.push(line)).map(|()| found)
        });
        Ok(Monitor { connection, reader })
    }

    /// Everything recorded, in order.
    pub(crate) fn stop(self) -> anyhow::Result<Vec<Line>> {
        self.connection.shutdown(Shutdown::Both)?;
        let lines = self.reader.join().ok().context("the reader of MONITOR does not panic")??;
        ensure!(!lines.is_empty(), "MONITOR recorded nothing");
        Ok(lines)
    }
}

/// A connection that is sent every command from now on.
pub(crate) fn open(port: u16) -> anyhow::Result<(TcpStream, BufReader<TcpStream>)> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::new(connection.try_clone()?);
    let mut answer = String::new();
    lines.read_line(&mut answer)?;
    ensure!(answer.trim() == "+OK", "MONITOR: {answer}");
    Ok((connection, lines))
}

/// Reads commands until the connection ends.
pub(crate) fn each_line(mut lines: BufReader<TcpStream>, mut take: impl FnMut(Line)) -> std::io::Result<()> {
    let mut text = String::new();
    loop {
        text.clear();
        match lines.read_line(&mut text) {
            Ok(0) => return Ok(()),
            Ok(_) => {
                if let Some(line) = Line::parse(text.trim_end()) {
                    take(line);
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Line {
    /// `+1700000000.123456 [0 127.0.0.1:5000] "HGET" "key" …`; a script's commands say `lua` for the address.
    fn parse(text: &str) -> Option<Line> {
        let (_, rest) = text.split_once(" [")?;
        let (origin, words) = rest.split_once("] ")?;
        let command = words.split('"').nth(1)?.to_uppercase();
        Some(Line { by_script: origin.ends_with("lua"), command, text: words.to_owned() })
    }
}
