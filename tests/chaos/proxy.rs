//! A relay in front of Redis that can hold replies back and cut connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// A relay on a loopback port of its own. Its threads end with its connections.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    held: Mutex<bool>,
    released: Condvar,
    connections: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl Proxy {
    /// Relays to `port` on this machine.
    pub(crate) fn start(port: u16) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if its.over.load(Ordering::Relaxed) {
                    return;
                }
                // A Redis that is down is a connection that ends at once.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    its.relay(client, server);
                }
            }
        });
        Ok(Proxy { address, shared })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Replies wait from now on; requests go through.
    pub(crate) fn hold(&self) {
        *self.shared.held() = true;
    }

    /// What waited goes on.
    pub(crate) fn release(&self) {
        *self.shared.held() = false;
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
    fn held(&self) -> std::sync::MutexGuard<'_, bool> {
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
        thread::spawn(move || copy(requests_from, requests_to, || {}));
        let shared = Arc::clone(self);
        thread::spawn(move || copy(server, client, || shared.wait_released()));
    }

    fn wait_released(&self) {
        let mut held = self.held();
        while *held && !self.over.load(Ordering::Relaxed) {
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
