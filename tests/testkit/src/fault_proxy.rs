//! A TCP proxy with faults that can be changed while it runs.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// A fault of the proxy. Requests always pass unchanged; faults affect replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyFault {
    /// No fault: bytes pass at once.
    None,
    /// Replies arrive this much later.
    Delay(Duration),
    /// Every other reply, on average, is delayed by a time between these two. Replies behind it wait.
    Jitter(Duration, Duration),
    /// One byte of a reply at a time, at this interval.
    Trickle(Duration),
    /// Connections are accepted and nothing ever passes, in either direction.
    BlackHole,
    /// Requests pass, replies are dropped: the server acts, and no client learns of it.
    Mute,
    /// The connection is reset when the next reply arrives.
    Reset,
    /// Half of the next reply passes, then the connection closes.
    CutReply,
    /// A byte in the middle of every reply is changed.
    Corrupt,
    /// New connections are closed at once, and so are open ones.
    Closed,
}

/// A proxy in front of one address.
pub struct FaultProxy {
    address: SocketAddr,
    fault: watch::Sender<ProxyFault>,
    target: Arc<Mutex<SocketAddr>>,
    accepted: Arc<AtomicU64>,
    muted: Arc<AtomicU64>,
    /// How often open connections were dropped silently.
    dropped: watch::Sender<u64>,
    serving: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy for `target`, without a fault.
    ///
    /// # Errors
    ///
    /// When no loopback port is free.
    pub async fn new(target: SocketAddr) -> io::Result<FaultProxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (fault, seen) = watch::channel(ProxyFault::None);
        let target = Arc::new(Mutex::new(target));
        let accepted = Arc::new(AtomicU64::new(0));
        let muted = Arc::new(AtomicU64::new(0));
        let (dropped, drops) = watch::channel(0);
        let serving =
            tokio::spawn(serve(listener, Arc::clone(&target), seen, drops, Arc::clone(&accepted), Arc::clone(&muted)));
        Ok(FaultProxy { address, fault, target, accepted, muted, dropped, serving })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the fault, for open connections, too.
    pub fn set(&self, fault: ProxyFault) {
        self.fault.send_replace(fault);
    }

    /// Open connections pass nothing any more and are not closed, as behind a firewall that has forgotten
    /// them. New connections work.
    pub fn drop_silently(&self) {
        self.dropped.send_modify(|times| *times += 1);
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        *self.target.lock() = target;
    }

    /// The number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The number of reads of replies that `ProxyFault::Mute` has dropped. Each had one reply or more.
    pub fn muted(&self) -> u64 {
        self.muted.load(Ordering::Relaxed)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
        self.fault.send_replace(ProxyFault::Closed);
    }
}

async fn serve(
    listener: TcpListener,
    target: Arc<Mutex<SocketAddr>>,
    fault: watch::Receiver<ProxyFault>,
    mut drops: watch::Receiver<u64>,
    accepted: Arc<AtomicU64>,
    muted: Arc<AtomicU64>,
) {
    while let Ok((client, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        let target = *target.lock();
        drops.mark_unchanged();
        let (fault, drops) = (fault.clone(), drops.clone());
        tokio::spawn(connection(client, target, fault, drops, Arc::clone(&muted)));
    }
}

async fn connection(
    client: TcpStream,
    target: SocketAddr,
    fault: watch::Receiver<ProxyFault>,
    mut drops: watch::Receiver<u64>,
    muted: Arc<AtomicU64>,
) {
    if *fault.borrow() == ProxyFault::Closed {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut closed = fault.clone();
    let mut passing = pin!(async {
        tokio::select! {
            () = requests(from_client, to_server, fault.clone()) => {}
            () = replies(from_server, to_client, fault, &muted) => {}
        }
    });
    let dropped = tokio::select! {
        () = &mut passing => false,
        _ = closed.wait_for(|fault| *fault == ProxyFault::Closed) => false,
        Ok(()) = drops.changed() => true,
    };
    if dropped {
        // Both sockets stay open and are not read.
        let _ = closed.wait_for(|fault| *fault == ProxyFault::Closed).await;
    }
}

/// Waits for the end of a black hole. Returns whether the proxy still exists then.
async fn wait_out_black_hole(fault: &mut watch::Receiver<ProxyFault>) -> bool {
    let ended = fault.wait_for(|fault| *fault != ProxyFault::BlackHole);
    ended.await.is_ok()
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut fault: watch::Receiver<ProxyFault>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if !wait_out_black_hole(&mut fault).await {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    // No more requests follow; replies are still outstanding.
    let _ = to.shutdown().await;
    std::future::pending().await
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut fault: watch::Receiver<ProxyFault>,
    muted: &AtomicU64,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut rng = JitterRng(1);
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let reply = &mut buffer[..read];
        let now = *fault.borrow_and_update();
        let passed = match now {
            ProxyFault::None | ProxyFault::Closed => to.write_all(reply).await,
            ProxyFault::Delay(by) => {
                sleep(by).await;
                to.write_all(reply).await
            }
            ProxyFault::Jitter(min, max) => {
                if rng.next_u64().is_multiple_of(2) {
                    let more = max.saturating_sub(min).as_micros().max(1);
                    let more = u128::from(rng.next_u64()) % more;
                    sleep(min + Duration::from_micros(u64::try_from(more).unwrap_or(0))).await;
                }
                to.write_all(reply).await
            }
            ProxyFault::Trickle(apart) => trickle(&mut to, reply, apart).await,
            ProxyFault::BlackHole if wait_out_black_hole(&mut fault).await => to.write_all(reply).await,
            ProxyFault::BlackHole => return,
            ProxyFault::Mute => {
                muted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            ProxyFault::Reset => {
                let _ = to.as_ref().set_zero_linger();
                to.forget();
                return;
            }
            ProxyFault::CutReply => {
                let _ = to.write_all(&reply[..read / 2]).await;
                return;
            }
            ProxyFault::Corrupt => {
                reply[read / 2] ^= 0x15;
                to.write_all(reply).await
            }
        };
        if passed.is_err() {
            return;
        }
    }
}

/// The same numbers in every run.
struct JitterRng(u64);

impl JitterRng {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 >> 33
    }
}

async fn trickle(to: &mut OwnedWriteHalf, reply: &[u8], apart: Duration) -> io::Result<()> {
    for byte in reply {
        to.write_all(&[*byte]).await?;
        sleep(apart).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server, and a proxy in front of it.
    async fn echo() -> FaultProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        FaultProxy::new(address).await.unwrap()
    }

    async fn round_trip(proxy: &FaultProxy, text: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(text).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        received
    }

    #[tokio::test]
    async fn each_fault_changes_the_reply() {
        let proxy = echo().await;
        assert_eq!(round_trip(&proxy, b"hello").await, b"hello");
        proxy.set(ProxyFault::Corrupt);
        assert_eq!(round_trip(&proxy, b"hello").await, b"heylo");
        proxy.set(ProxyFault::CutReply);
        assert_eq!(round_trip(&proxy, b"hello").await, b"he");
        proxy.set(ProxyFault::Trickle(Duration::from_millis(1)));
        assert_eq!(round_trip(&proxy, b"hello").await, b"hello");
        proxy.set(ProxyFault::Mute);
        assert_eq!(round_trip(&proxy, b"hello").await, b"");
        proxy.set(ProxyFault::Closed);
        assert_eq!(round_trip(&proxy, b"hello").await, b"");
        assert_eq!(proxy.accepted(), 6);
    }

    #[tokio::test]
    async fn bytes_in_a_black_hole_arrive_when_it_ends() {
        let proxy = echo().await;
        proxy.set(ProxyFault::BlackHole);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"late").await.unwrap();
        let mut received = [0; 4];
        let waited = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut received));
        assert!(waited.await.is_err());
        proxy.set(ProxyFault::None);
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"late");
    }

    #[tokio::test]
    async fn a_silently_dropped_connection_passes_nothing_and_new_ones_work() {
        let proxy = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let mut received = [0; 1];
        stream.write_all(b"a").await.unwrap();
        stream.read_exact(&mut received).await.unwrap();
        proxy.drop_silently();
        stream.write_all(b"b").await.unwrap();
        assert_eq!(round_trip(&proxy, b"hello").await, b"hello");
        let waited = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut received));
        assert!(waited.await.is_err(), "neither passed nor closed");
    }

    #[tokio::test]
    async fn an_open_connection_is_reset() {
        let proxy = echo().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.set(ProxyFault::Reset);
        stream.write_all(b"x").await.unwrap();
        let error = stream.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
