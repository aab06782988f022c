//! The bytes to and from the server, where they are not encrypted: a socket that is [watched](crate::attention).

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::attention::Attention;

/// A socket, and whether to watch it.
pub(crate) struct Stream {
    socket: Socket,
    attention: Arc<Attention>,
}

enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    /// Connects to the address; nothing if that takes more than a socket.
    pub(crate) async fn connect(
        info: &ConnectionInfo,
        attention: Arc<Attention>,
    ) -> Option<io::Result<Self>> {
        let socket = match info.addr() {
            ConnectionAddr::Tcp(host, port) => tcp(host, *port, info.tcp_settings()).await.map(Socket::Tcp),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => UnixStream::connect(path).await.map(Socket::Unix),
            _ => return None,
        };
        Some(socket.map(|socket| Self { socket, attention }))
    }

    fn has_something_to_read(&self) -> bool {
        let socket = match &self.socket {
            Socket::Tcp(socket) => SockRef::from(socket),
            #[cfg(unix)]
            Socket::Unix(socket) => SockRef::from(socket),
        };
        // Or its end, or an error: there is nothing to watch for any more.
        !matches!(socket.peek(&mut [MaybeUninit::uninit()]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Whichever address of the host answers first.
async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let tries: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if tries.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(tries).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            #[cfg(unix)]
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            #[cfg(unix)]
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        };
        if matches!(written, Poll::Ready(Ok(count)) if count == bytes.len()) {
            self.attention.watch(|| self.has_something_to_read());
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(context),
            #[cfg(unix)]
            Socket::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            #[cfg(unix)]
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::ProtocolVersion;
    use tenure_core::clock::SystemClock;

    use super::*;
    use crate::config::RedisConfig;
    use crate::server;

    /// Nobody waits for a packet to fill up, or for ever for a peer that is gone.
    #[tokio::test]
    async fn a_socket_is_quick_and_notices_a_dead_peer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}?timeout=2s", listener.local_addr().unwrap());
        let config = RedisConfig::from_url(&url).unwrap();
        let client = server::client(&config, config.connection_info(ProtocolVersion::RESP3, None)).unwrap();
        let attention = Arc::new(Attention::new(Arc::new(SystemClock), false));
        let stream = Stream::connect(client.get_connection_info(), attention).await.unwrap().unwrap();
        let Socket::Tcp(socket) = &stream.socket else { panic!("not TCP") };
        let socket = SockRef::from(socket);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(std::time::Duration::from_secs(10)));
    }
}
