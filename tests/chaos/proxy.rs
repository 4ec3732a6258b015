//! A relay in front of a server that can hold back what goes through, and cut connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// A relay on a loopback port of its own. Its threads end with its connections.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Nothing,
    Replies,
    All,
}

#[derive(Default)]
struct Shared {
    target: AtomicU16,
    held: Mutex<Held>,
    released: Condvar,
    connections: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl Proxy {
    /// Relays to a port on this machine that is told by [`Proxy::lead_to`].
    pub(crate) fn start() -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if its.over.load(Ordering::Relaxed) {
                    return;
                }
                // A server that is down is a connection that ends at once.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, its.target.load(Ordering::Relaxed))) {
                    its.relay(client, server);
                }
            }
        });
        Ok(Proxy { address, shared })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.target.store(port, Ordering::Relaxed);
    }

    /// Replies wait from now on; requests go through.
    pub(crate) fn hold_replies(&self) {
        *self.shared.held() = Held::Replies;
    }

    /// Everything waits from now on.
    pub(crate) fn hold_all(&self) {
        *self.shared.held() = Held::All;
    }

    /// What waited goes on.
    pub(crate) fn release(&self) {
        *self.shared.held() = Held::Nothing;
        self.shared.released.notify_all();
    }

    /// Ends every connection there is, with what waits on it.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections().drain(..) {
            let _ = connection.shutdown(Shutdown::Both); // it may have ended by itself
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.cut();
        self.release();
        let _ = TcpStream::connect(self.address); // wakes the listening thread
    }
}

impl Shared {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn relay(self: &Arc<Shared>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true); // slower without, not wrong
        }
        let clones = (client.try_clone(), server.try_clone(), client.try_clone());
        let (Ok(requests_from), Ok(requests_to), Ok(kept)) = clones else { return };
        self.connections().push(kept);
        let shared = Arc::clone(self);
        thread::spawn(move || copy(requests_from, requests_to, || shared.wait_while(|held| held == Held::All)));
        let shared = Arc::clone(self);
        thread::spawn(move || copy(server, client, || shared.wait_while(|held| held != Held::Nothing)));
    }

    fn wait_while(&self, is_held: impl Fn(Held) -> bool) {
        let mut held = self.held();
        while is_held(*held) && !self.over.load(Ordering::Relaxed) {
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Copies until either side ends, then ends both.
fn copy(mut from: TcpStream, mut to: TcpStream, before_each: impl Fn()) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        before_each();
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
