//! People who log in and take their time about it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
};

use crate::callers::{address, user};

/// How long one waits between two logins.
const THINKING: Duration = Duration::from_millis(5);

/// So many people log in for a while, each over a connection of their own. Says how many microseconds each
/// login took, the quickest first.
pub fn log_in(runtime: &Runtime, port: u16, people: usize, time: Duration) -> Vec<f64> {
    runtime.block_on(async {
        let mut running = JoinSet::new();
        let until = Instant::now() + time;
        for _ in 0..people {
            running.spawn(person(port, until));
        }
        let mut waits = running.join_all().await.concat();
        waits.sort_by(f64::total_cmp);
        waits
    })
}

async fn person(port: u16, until: Instant) -> Vec<f64> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let connection = TcpStream::connect(("127.0.0.1", port)).await;
    let mut connection = connection.expect("a connection");
    connection.set_nodelay(true).expect("a setting");
    let mut waits = Vec::new();
    while Instant::now() < until {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let request = format!(
            "POST /login HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: {}\r\nx-user: {}\r\n\
             content-length: 0\r\n\r\n",
            address(n),
            user(n)
        );
        let begun = Instant::now();
        let sent = connection.write_all(request.as_bytes()).await;
        sent.expect("a connection that lasts");
        // The answer has no body and comes at once.
        let mut answer = Vec::with_capacity(512);
        while !answer.ends_with(b"\r\n\r\n") {
            let read = connection.read_buf(&mut answer).await;
            assert!(read.is_ok_and(|bytes| bytes > 0), "the server hung up");
        }
        waits.push(begun.elapsed().as_secs_f64() * 1e6);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        tokio::time::sleep(THINKING).await;
    }
    waits
}
