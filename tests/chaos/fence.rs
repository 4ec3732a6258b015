//! Whether a former owner still writes once another owner has claimed its partition, by what Redis says it does.

use std::collections::{BTreeSet, HashMap};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::monitor::{Line, each_line, open};

/// What changes a key.
const WRITES: [&str; 11] =
    ["HSET", "HDEL", "XADD", "XDEL", "XTRIM", "ZADD", "ZREM", "SADD", "DEL", "UNLINK", "PEXPIRE"];

/// Watches a Redis, through its restarts, until it is asked what it saw.
pub(crate) struct Watch {
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    connection: Option<TcpStream>,
    over: bool,
    claims: u64,
    fenced: u64,
    violations: Vec<String>,
}

/// What a watch saw.
pub(crate) struct Seen {
    pub(crate) claims: u64,
    /// Calls of former owners, each refused.
    pub(crate) fenced: u64,
    pub(crate) violations: Vec<String>,
}

impl Watch {
    /// Watches the Redis on `port`.
    pub(crate) fn start(port: u16) -> Watch {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let its = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !lock(&its).over {
                let Ok((connection, lines)) = open(port) else {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                };
                lock(&its).connection = Some(connection);
                // Who owned what before is not known: a Redis may have come back with other owners.
                let mut owners = Owners::default();
                // A connection that breaks is one that ends.
                let _ = each_line(lines, |line| owners.take(&line, &mut lock(&its)));
            }
        });
        Watch { shared, thread: Some(thread) }
    }

    /// Ends the watch.
    pub(crate) fn stop(mut self) -> Seen {
        self.end();
        let mut shared = lock(&self.shared);
        let violations = std::mem::take(&mut shared.violations);
        Seen { claims: shared.claims, fenced: shared.fenced, violations }
    }

    fn end(&mut self) {
        {
            let mut shared = lock(&self.shared);
            shared.over = true;
            if let Some(connection) = &shared.connection {
                let _ = connection.shutdown(Shutdown::Both); // it may have ended by itself
            }
        }
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a watch does not panic");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has claimed what since the connection began.
#[derive(Default)]
struct Owners {
    /// Token by the key of the source partition.
    current: HashMap<String, String>,
    former: BTreeSet<String>,
    /// The call under way, if a former owner made it.
    call: Option<String>,
}

impl Owners {
    fn take(&mut self, line: &Line, shared: &mut Shared) {
        if !line.by_script {
            let mut words = line.text.split('"').skip(1).step_by(2).take(40);
            let is_former = line.command == "EVALSHA" && words.any(|word| self.former.contains(word));
            self.call = is_former.then(|| line.text.chars().take(300).collect());
            shared.fenced += u64::from(is_former);
            return;
        }
        if let Some(call) = &self.call
            && WRITES.contains(&line.command.as_str())
        {
            shared.violations.push(format!("a former owner wrote {} by {call}", line.text));
        }
        if line.command == "HSET" {
            self.learn_owner(&line.text, shared);
        }
    }

    /// `"HSET" "tw:source:ticks/0" … "token" "<token>" …`
    fn learn_owner(&mut self, text: &str, shared: &mut Shared) {
        let words: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
        let Some(at) = words.iter().position(|word| *word == "token") else { return };
        let (Some(source), Some(token)) = (words.get(1), words.get(at + 1)) else { return };
        if let Some(before) = self.current.insert((*source).to_owned(), (*token).to_owned())
            && before != *token
        {
            self.former.insert(before);
        }
        shared.claims += 1;
    }
}
