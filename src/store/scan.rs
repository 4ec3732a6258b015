//! Finding keys by pattern, for listings and rare moments: never on the way of a tick.

use std::collections::BTreeSet;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

/// The names of all keys that match a glob pattern, each once, sorted. Names that are not UTF-8 are left out:
/// no key of ours has one.
pub(super) async fn keys(conn: &mut MultiplexedConnection, pattern: &str) -> RedisResult<Vec<String>> {
    let mut names = BTreeSet::new();
    let mut cursor: u64 = 0;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
        let found: Vec<Vec<u8>>;
        (cursor, found) = scan.query_async(conn).await?;
        names.extend(found.into_iter().filter_map(|name| String::from_utf8(name).ok()));
        if cursor == 0 {
            return Ok(names.into_iter().collect());
        }
    }
}

/// A text as a glob pattern that matches just it.
pub(super) fn glob_escape(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}
