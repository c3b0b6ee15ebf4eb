//! A proxy in front of a server, whose connections can go bad.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
};

/// Passes on what it gets, both ways.
pub struct Proxy {
    pub address: SocketAddr,
    opened: Arc<AtomicUsize>,
    /// Connections opened before so many others swallow what they get.
    swallowing: Arc<AtomicUsize>,
}

impl Proxy {
    pub async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            opened: Arc::default(),
            swallowing: Arc::default(),
        };
        let (opened, swallowing) = (Arc::clone(&proxy.opened), Arc::clone(&proxy.swallowing));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = opened.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(&server).await.expect("the server");
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                for (from, to) in [(from_client, to_server), (from_server, to_client)] {
                    tokio::spawn(pass_on(from, to, number, Arc::clone(&swallowing)));
                }
            }
        });
        proxy
    }

    /// Connections that are open now stay open and lead nowhere, as behind a router that has forgotten
    /// them; new ones work.
    pub fn forget_connections(&self) {
        let opened = self.opened.load(Ordering::SeqCst);
        self.swallowing.store(opened, Ordering::SeqCst);
    }
}

async fn pass_on(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    number: usize,
    swallowing: Arc<AtomicUsize>,
) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let swallowed = number < swallowing.load(Ordering::SeqCst);
        if !swallowed && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
