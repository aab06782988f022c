//! Faults of a network, put between a client and a server: a TCP proxy that misbehaves when told to.
//!
//! Owns the wire and nothing else: it does not know the protocol, except where a fault needs to find the start of a
//! message. Each direction has its own faults; they may be changed at any moment and apply to what passes from then
//! on, on connections that are open and on new ones.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server: requests.
    Out,
    /// From the server to the client: replies and pushes.
    Back,
}

/// What is done to what passes one way. By default it passes.
#[derive(Debug, Clone, Default)]
pub struct Fault {
    /// Passes everything so much later.
    pub delay: Duration,
    /// Swallows everything: the sender is not told.
    pub blackhole: bool,
    /// Keeps everything until the fault is healed, then passes it in one go.
    pub hold: bool,
    /// Passes so many further bytes, then resets the connection.
    pub cut_after: Option<usize>,
    /// Passes the next chunk twice, once: a request delivered again.
    pub duplicate: bool,
    /// Leaves out RESP3 push messages (`>`), if they stand alone in a chunk or at its end.
    pub drop_pushes: bool,
}

/// A proxy in front of one server. Stops with its value.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

struct Shared {
    /// Where new connections lead.
    server: Mutex<SocketAddr>,
    out: Side,
    back: Side,
    /// Refuses new connections.
    is_closed: AtomicBool,
    /// Connections accepted so far.
    accepted: AtomicUsize,
    connections: Mutex<JoinSet<()>>,
    /// Those that are open.
    reset: Notify,
}

#[derive(Default)]
struct Side {
    fault: Mutex<Fault>,
    changed: Notify,
    /// Bytes that have passed.
    passed: AtomicUsize,
}

impl Side {
    fn fault(&self) -> Fault {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Proxy {
    /// A proxy in front of `server`, on a port of its own.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it has one");
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            out: Side::default(),
            back: Side::default(),
            is_closed: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            connections: Mutex::default(),
            reset: Notify::new(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { address, shared, accepting }
    }

    /// Where to connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server behind it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    fn side(&self, way: Way) -> &Side {
        match way {
            Way::Out => &self.shared.out,
            Way::Back => &self.shared.back,
        }
    }

    /// Changes what is done to what passes `way`.
    pub fn set(&self, way: Way, fault: Fault) {
        let side = self.side(way);
        *side.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        side.changed.notify_waiters();
    }

    /// Both ways work again.
    pub fn heal(&self) {
        self.shared.is_closed.store(false, Ordering::SeqCst);
        self.set(Way::Out, Fault::default());
        self.set(Way::Back, Fault::default());
    }

    /// Resets all connections that are open (RST).
    pub fn reset_all(&self) {
        self.shared.reset.notify_waiters();
    }

    /// New connections lead to another server, as after a failover behind one name; those that are open go on.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Refuses new connections until healed; those that are open go on.
    pub fn refuse_new(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }

    /// How many connections were made so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes have passed `way`.
    pub fn passed(&self, way: Way) -> usize {
        self.side(way).passed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .field("out", &self.shared.out.fault())
            .field("back", &self.shared.back.fault())
            .finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        if shared.is_closed.load(Ordering::SeqCst) {
            reset(client);
            continue;
        }
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let connection = carry(client, shared.clone());
        shared.connections.lock().unwrap_or_else(PoisonError::into_inner).spawn(connection);
    }
}

/// Closes with RST: what lingers for no time is reset.
fn reset(stream: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
}

async fn carry(client: TcpStream, shared: Arc<Shared>) {
    let server = *shared.server.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(server) = TcpStream::connect(server).await else { return reset(client) };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let reset_now = shared.reset.notified();
    let mut out = Pipe::new(from_client, to_server);
    let mut back = Pipe::new(from_server, to_client);
    let was_cut = tokio::select! {
        () = reset_now => true,
        was_cut = out.run(&shared.out) => was_cut,
        was_cut = back.run(&shared.back) => was_cut,
    };
    let client = out.from.reunite(back.to).expect("halves of one stream");
    let server = back.from.reunite(out.to).expect("halves of one stream");
    if was_cut {
        reset(client);
        reset(server);
    }
}

/// One direction of one connection.
struct Pipe {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    /// What was read and not yet passed, and when.
    kept: VecDeque<(tokio::time::Instant, Vec<u8>)>,
}

impl Pipe {
    const fn new(from: OwnedReadHalf, to: OwnedWriteHalf) -> Self {
        Self { from, to, kept: VecDeque::new() }
    }

    /// Carries bytes until either end is closed; answers whether the connection is to be reset. What was read before
    /// the sender closed is still delivered: a network forgets no bytes because their sender has left.
    async fn run(&mut self, side: &Side) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        let mut is_ended = false;
        while !is_ended || !self.kept.is_empty() {
            let changed = side.changed.notified();
            let fault = side.fault();
            let due = (!fault.hold).then(|| self.kept.front().map(|(read, _)| *read + fault.delay)).flatten();
            let pass = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = pass => {
                    let (_, chunk) = self.kept.pop_front().expect("it is due");
                    match self.pass(side, &fault, chunk).await {
                        Ok(false) => {}
                        Ok(true) | Err(_) => return true,
                    }
                }
                read = self.from.read(&mut buffer), if !is_ended => match read {
                    Ok(0) => is_ended = true,
                    Err(_) => return true,
                    Ok(bytes) => {
                        #[expect(clippy::disallowed_methods, reason = "a delay on the wire is not tenure's time")]
                        let now = tokio::time::Instant::now();
                        self.kept.push_back((now, buffer[..bytes].to_vec()));
                    }
                },
            }
        }
        false
    }

    /// Passes one chunk on as the fault says; answers whether the connection is to be reset now.
    async fn pass(&mut self, side: &Side, fault: &Fault, mut chunk: Vec<u8>) -> std::io::Result<bool> {
        if fault.blackhole {
            return Ok(false);
        }
        if fault.drop_pushes {
            without_pushes(&mut chunk);
        }
        let mut is_cut = false;
        if let Some(left) = fault.cut_after {
            is_cut = chunk.len() >= left;
            chunk.truncate(left);
            let mut fault = side.fault.lock().unwrap_or_else(PoisonError::into_inner);
            fault.cut_after = if is_cut { None } else { Some(left - chunk.len()) };
        }
        let times = if fault.duplicate { 2 } else { 1 };
        if fault.duplicate {
            side.fault.lock().unwrap_or_else(PoisonError::into_inner).duplicate = false;
        }
        for _ in 0..times {
            self.to.write_all(&chunk).await?;
            side.passed.fetch_add(chunk.len(), Ordering::SeqCst);
        }
        Ok(is_cut)
    }
}

/// Cuts the push messages out of a chunk of RESP3 that starts with whole messages. What cannot be parsed stays.
fn without_pushes(chunk: &mut Vec<u8>) {
    let mut kept = Vec::with_capacity(chunk.len());
    let mut rest = chunk.as_slice();
    while let Some(length) = message_length(rest) {
        let (message, tail) = rest.split_at(length);
        if message[0] != b'>' {
            kept.extend_from_slice(message);
        }
        rest = tail;
    }
    kept.extend_from_slice(rest);
    *chunk = kept;
}

/// How long the RESP message at the start of `bytes` is, if it is all there.
fn message_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..line - 2]).ok()?.parse::<i64>().ok();
    match bytes.first()? {
        b'$' | b'=' | b'!' => match usize::try_from(number()?) {
            Ok(length) => Some(line + length + 2).filter(|end| *end <= bytes.len()),
            Err(_) => Some(line),
        },
        kind @ (b'*' | b'>' | b'~' | b'%') => {
            let items = usize::try_from(number()?).unwrap_or(0) * if *kind == b'%' { 2 } else { 1 };
            (0..items).try_fold(line, |end, _| Some(end + message_length(bytes.get(end..)?)?))
        }
        _ => Some(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_are_cut_out_and_nothing_else() {
        let mut chunk =
            b"+OK\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n*2\r\n:1\r\n$-1\r\n$3\r\nab".to_vec();
        without_pushes(&mut chunk);
        assert_eq!(chunk, b"+OK\r\n*2\r\n:1\r\n$-1\r\n$3\r\nab");
    }
}
