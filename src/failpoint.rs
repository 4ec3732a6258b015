//! Points at which a test lets this process die, as if its plug were pulled: built with the feature `failpoints` only.
//!
//! `TW_TEST_FAILPOINT=applied=4*off->return` lets it die at the fifth passing of the point `applied`; the language of
//! the right-hand side is that of the crate `fail`. `tests/it/deaths.rs` has a test for each point.

/// Passes a point.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn pass(_: &'static str) {}

/// Passes a point, or dies there.
#[cfg(feature = "failpoints")]
pub(crate) fn pass(point: &'static str) {
    static CONFIGURED: std::sync::Once = std::sync::Once::new();
    CONFIGURED.call_once(configure);
    fail::fail_point!(point, |_| die(point));
}

#[cfg(feature = "failpoints")]
fn configure() {
    const VARIABLE: &str = "TW_TEST_FAILPOINT";
    let Ok(chosen) = std::env::var(VARIABLE) else { return };
    let configured = chosen
        .split_once('=')
        .ok_or_else(|| "there is no =".to_owned())
        .and_then(|(point, actions)| fail::cfg(point, actions));
    if let Err(error) = configured {
        panic!("{VARIABLE}={chosen}: {error}; write <point>=<actions>, such as applied=4*off->return");
    }
}

/// Nothing is flushed, closed or told to anybody: what SIGKILL leaves.
#[cfg(feature = "failpoints")]
fn die(point: &str) -> ! {
    use rustix::process::{Signal, getpid, kill_process};
    eprintln!("died at failpoint {point}");
    let killed = kill_process(getpid(), Signal::KILL);
    unreachable!("a process may kill itself: {killed:?}");
}
