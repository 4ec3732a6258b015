//! A terminal of a test's own, to see what people see.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The test's end of a terminal; programs write into the other.
pub(crate) struct Terminal {
    control: OwnedFd,
    screen: File,
}

impl Terminal {
    /// A terminal of this size.
    pub(crate) fn open(columns: u16, rows: u16) -> anyhow::Result<Terminal> {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("a terminal")?;
        grantpt(&control)?;
        unlockpt(&control)?;
        tcsetwinsize(&control, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let name = ptsname(&control, Vec::new())?;
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let screen = File::options().read(true).write(true).open(path)?;
        Ok(Terminal { control, screen })
    }

    /// The command's standard output is this terminal.
    pub(crate) fn show(&self, command: &mut Command) -> anyhow::Result<()> {
        command.env("TERM", "xterm-256color").stdout(Stdio::from(self.screen.try_clone()?));
        Ok(())
    }

    /// Everything written to it until the last program has let go of it; what it makes of line ends is undone. Give
    /// the command up first: it holds the terminal too.
    pub(crate) fn read_to_end(self) -> JoinHandle<String> {
        let Terminal { control, screen } = self;
        drop(screen);
        thread::spawn(move || {
            let mut written = Vec::new();
            // The last one to let go ends it with an error (EIO), not with an end of file.
            let _ = File::from(control).read_to_end(&mut written);
            String::from_utf8_lossy(&written).replace("\r\n", "\n")
        })
    }
}
