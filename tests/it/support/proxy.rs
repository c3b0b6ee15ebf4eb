//! A proxy in front of a server, whose connections can go bad.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
};

/// Passes on what it gets, both ways, unless it is told otherwise.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    opened: AtomicUsize,
    /// Connections opened before so many others swallow what they get.
    swallowing: AtomicUsize,
    calls: AtomicUsize,
    polls: AtomicUsize,
    to_lose: AtomicUsize,
    fault: Mutex<Fault>,
}

/// What is wrong with all connections, old and new.
#[derive(Clone, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// Whatever is sent is never seen again.
    BlackHole,
    /// Each reply comes so much later.
    Slow(Duration),
    /// Connections break when a reply is to be passed on.
    LostReplies,
    /// Connections break when a command is sent.
    Resets,
    /// Calls of scripts do not reach the server, and are answered like this.
    Answers(Vec<u8>),
    /// The same, and then the connection breaks.
    BreaksOff(Vec<u8>),
}

impl Proxy {
    pub async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            state: Arc::default(),
        };
        let state = Arc::clone(&proxy.state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = state.opened.fetch_add(1, Ordering::SeqCst);
                let (server, state) = (server.clone(), Arc::clone(&state));
                tokio::spawn(async move {
                    // A server that is gone refuses those who come through here too.
                    if let Ok(server) = TcpStream::connect(&server).await {
                        let leads_nowhere = AtomicBool::new(false);
                        let passage = Passage {
                            number,
                            state,
                            leads_nowhere,
                        };
                        passage.pass(client, server).await;
                    }
                });
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Connections that are open now stay open and lead nowhere, as behind a router that has forgotten
    /// them; new ones work.
    pub fn forget_connections(&self) {
        let opened = self.state.opened.load(Ordering::SeqCst);
        self.state.swallowing.store(opened, Ordering::SeqCst);
    }

    pub fn fail(&self, fault: Fault) {
        *self.state.fault.lock().expect("a fault") = fault;
    }

    /// The next so many replies are lost, and the connections with them.
    pub fn lose_replies(&self, replies: usize) {
        self.state.to_lose.store(replies, Ordering::SeqCst);
    }

    /// Whether all of them are lost by now.
    pub fn has_lost_them(&self) -> bool {
        self.state.to_lose.load(Ordering::SeqCst) == 0
    }

    /// How many calls of scripts came.
    pub fn calls(&self) -> usize {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// How often the version of the ruleset was asked for.
    pub fn polls(&self) -> usize {
        self.state.polls.load(Ordering::SeqCst)
    }
}

/// One connection.
struct Passage {
    number: usize,
    state: Arc<State>,
    /// Something got lost on it. What comes after that would be out of order, so nothing does.
    leads_nowhere: AtomicBool,
}

impl Passage {
    async fn pass(self, client: TcpStream, server: TcpStream) {
        let (from_client, mut to_client) = client.into_split();
        let (from_server, mut to_server) = server.into_split();
        // Either way ends both.
        tokio::select! {
            () = self.commands(from_client, &mut to_server) => {}
            end = self.replies(from_server, &mut to_client) => {
                if let Some(last_words) = end {
                    let _ = to_client.write_all(&last_words).await;
                }
            }
        }
    }

    fn fault(&self) -> Fault {
        let is_forgotten = self.number < self.state.swallowing.load(Ordering::SeqCst);
        let fault = match is_forgotten || self.leads_nowhere.load(Ordering::SeqCst) {
            true => Fault::BlackHole,
            false => self.state.fault.lock().expect("a fault").clone(),
        };
        if matches!(fault, Fault::BlackHole) {
            self.leads_nowhere.store(true, Ordering::SeqCst);
        }
        fault
    }

    async fn commands(&self, mut from: tcp::OwnedReadHalf, to: &mut tcp::OwnedWriteHalf) {
        let (mut buffer, mut commands) = ([0; 64 * 1024], Vec::new());
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            commands.extend_from_slice(&buffer[..read]);
            let mut passed = Vec::new();
            while let Some(length) = length_of_command(&commands) {
                let command: Vec<u8> = commands.drain(..length).collect();
                let is_call = count(&command[..length.min(20)], b"EVAL") > 0;
                self.state.calls.fetch_add(is_call.into(), Ordering::SeqCst);
                let is_poll = count(&command[..length.min(20)], b"HMGET") > 0;
                self.state.polls.fetch_add(is_poll.into(), Ordering::SeqCst);
                match self.fault() {
                    Fault::BlackHole => continue,
                    Fault::Resets => return,
                    // The server is asked something that it answers at once, to be replaced.
                    Fault::Answers(_) | Fault::BreaksOff(_) if is_call => {
                        passed.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$6\r\nSCRIPT\r\n");
                    }
                    _ => passed.extend(command),
                }
            }
            if to.write_all(&passed).await.is_err() {
                return;
            }
        }
    }

    /// Ends with what is to be said last, if anything.
    async fn replies(
        &self,
        mut from: tcp::OwnedReadHalf,
        to: &mut tcp::OwnedWriteHalf,
    ) -> Option<Vec<u8>> {
        const ECHO: &[u8] = b"$6\r\nSCRIPT\r\n";
        let mut buffer = [0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let replies = &buffer[..read];
            let to_lose = |lose: usize| lose.checked_sub(1);
            let passed = match self.fault() {
                Fault::BlackHole => continue,
                Fault::LostReplies => return None,
                _ if (self.state.to_lose)
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, to_lose)
                    .is_ok() =>
                {
                    return None;
                }
                Fault::BreaksOff(answer) if count(replies, ECHO) > 0 => return Some(answer),
                Fault::Answers(answer) => {
                    let mut passed = Vec::new();
                    let mut rest = replies;
                    while let Some(at) = find(rest, ECHO) {
                        passed.extend_from_slice(&rest[..at]);
                        passed.extend_from_slice(&answer);
                        rest = &rest[at + ECHO.len()..];
                    }
                    passed.extend_from_slice(rest);
                    passed
                }
                Fault::Slow(time) => {
                    tokio::time::sleep(time).await;
                    replies.to_vec()
                }
                _ => replies.to_vec(),
            };
            if to.write_all(&passed).await.is_err() {
                return None;
            }
        }
        None
    }
}

/// How many bytes the first command has, if all of it is there.
fn length_of_command(bytes: &[u8]) -> Option<usize> {
    let line = |from: usize| -> Option<(usize, usize)> {
        let end = from + find(&bytes[from..], b"\r\n")?;
        let number = std::str::from_utf8(&bytes[from + 1..end]).ok()?;
        Some((number.parse().ok()?, end + 2))
    };
    let (parts, mut at) = line(0)?;
    for _ in 0..parts {
        let (length, begin) = line(at)?;
        at = begin + length + 2;
        if at > bytes.len() {
            return None;
        }
    }
    Some(at)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|found| found == part)
}

fn count(bytes: &[u8], part: &[u8]) -> usize {
    bytes
        .windows(part.len())
        .filter(|found| *found == part)
        .count()
}
