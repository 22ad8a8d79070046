//! Connections on their way in. A connection is a file descriptor, so there is a most of them, and
//! one that has not said what every HTTP/2 client says first within some seconds is closed: whoever
//! opens connections and keeps silent cannot keep others out. When the kernel refuses a connection
//! (no descriptors left), accepting pauses and goes on; it neither spins nor ends.
//!
//! Later silence is the server's concern: it pings, and closes what does not answer.

use crate::listen::Listener;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, OwnedSemaphorePermit, Semaphore},
    time::{sleep, Sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Connections open at once, on all sockets together. Half of the 1024 descriptors that a process
/// may have where nobody raised that.
pub const MAX_CONNECTIONS: usize = 512;

/// What a client sends first: HTTP/2's preface, so many bytes.
const PREFACE: usize = 24;

/// How long it may take to.
pub const MAX_SILENCE: Duration = Duration::from_secs(10);

/// After the kernel refused a connection.
const PAUSE: Duration = Duration::from_millis(250);

/// Places for connections.
pub type Places = Arc<Semaphore>;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// A client's connection. Gives its place back when dropped.
pub struct Connection {
    socket: Box<dyn Socket>,
    heard: usize,
    silence: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

/// The connections that come in at `listener`, until the stream is dropped; without those that keep
/// silent for longer than `silence` at their beginning.
pub fn connections(
    listener: Listener,
    places: Places,
    silence: Duration,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = accept_all(&listener, places, silence, &sender) => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: &Listener,
    places: Places,
    silence: Duration,
    sender: &mpsc::Sender<io::Result<Connection>>,
) {
    while let Ok(place) = places.clone().acquire_owned().await {
        let socket = match accept(listener).await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(event = "accept_failed", %error);
                sleep(PAUSE).await;
                continue;
            }
        };
        let silence = Box::pin(sleep(silence));
        let connection = Connection { socket, heard: 0, silence, _place: place };
        if sender.send(Ok(connection)).await.is_err() {
            return;
        }
    }
}

async fn accept(listener: &Listener) -> io::Result<Box<dyn Socket>> {
    match listener {
        Listener::Tcp(listener) => {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            Ok(Box::new(socket))
        }
        Listener::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        self.heard = self.heard.saturating_add(buffer.filled().len() - before);
        if read.is_pending() && self.heard < PREFACE && self.silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };
    use tokio_stream::StreamExt;

    async fn listening() -> (Listener, String) {
        let listener = listen::open(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap().to_string();
        (listener, address)
    }

    /// Long enough for what a test says on the same machine.
    const SILENCE: Duration = Duration::from_millis(300);

    #[tokio::test]
    async fn who_keeps_silent_is_let_go_and_who_has_spoken_is_not() {
        let (listener, address) = listening().await;
        let mut incoming = connections(listener, Places::new(Semaphore::new(8)), SILENCE);
        let mut byte = [0];
        for (said, stays) in [(0, false), (PREFACE - 1, false), (PREFACE, true)] {
            let mut client = TcpStream::connect(&address).await.unwrap();
            client.write_all(&[b'P'; PREFACE][..said]).await.unwrap();
            let mut connection = incoming.next().await.unwrap().unwrap();
            for _ in 0..said {
                connection.read_exact(&mut byte).await.unwrap();
            }
            let read = timeout(2 * SILENCE, connection.read_exact(&mut byte)).await;
            match stays {
                true => assert!(read.is_err(), "it still waits"),
                false => {
                    assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_connection_too_many_comes_in_once_another_ends() {
        let (listener, address) = listening().await;
        let mut incoming = connections(listener, Places::new(Semaphore::new(1)), SILENCE);
        let _clients = (TcpStream::connect(&address).await, TcpStream::connect(&address).await);
        let first = incoming.next().await.unwrap().unwrap();
        let moment = Duration::from_millis(100);
        assert!(timeout(moment, incoming.next()).await.is_err(), "there is one place");
        drop(first);
        incoming.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_port_is_free_once_nobody_takes_connections() {
        let (listener, address) = listening().await;
        drop(connections(listener, Places::new(Semaphore::new(1)), SILENCE));
        for _ in 0..100 {
            if listen::open(&address.parse().unwrap()).await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{address} is still taken");
    }
}
