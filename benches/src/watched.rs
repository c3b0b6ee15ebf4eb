//! Logins while the console is open, in a real browser and in a client that asks for the same.

use std::{
    cell::RefCell,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    operated,
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Ratio, Rounds},
    wrk::{Callers, Wrk},
};

const SECTION: &str = "Logins while the console is open";
const CONNECTIONS: u32 = 64;
/// Longer than the page waits until it asks again.
const SECONDS: u32 = 6;

const CLOSED: &str = "no console open";
const CLIENT: &str = "open in a client that asks as the page does";
const CHROMIUM: &str = "open in Chromium on the same machine";

pub fn measure(report: &mut Report) {
    let redis = RedisServer::start();
    let server = Server::start(&redis);
    let turns = RefCell::new(Vec::new());
    let turn = |name: &'static str| {
        let load = || {
            let before = server.cpu();
            let asked = server.asked(POLLED);
            let load = Wrk::start(server.port, CONNECTIONS, SECONDS, Callers::Fresh).finish();
            assert_eq!(load.refused, 0.0, "{name}: {load:?}");
            let is_open = server.asked(POLLED) > asked;
            assert_eq!(is_open, name != CLOSED, "{name}: is the page open?");
            let cpu = (server.cpu() - before) / load.requests;
            turns.borrow_mut().push((name, load.p99, cpu * 1e6));
            load.rate
        };
        match name {
            CLIENT => beside_client(&server, load),
            CHROMIUM => beside_chromium(&server, load),
            _ => load(),
        }
    };
    let names = [CLOSED, CLIENT, CHROMIUM];
    let contender = |name| -> Contender<'_> { (name, Box::new(|| turn(name))) };
    let rounds = Rounds::take_turns(names.map(contender).into());

    // The first turn of each warms up.
    let turns = turns.borrow();
    let of = |name: &str, value: fn(&(&str, f64, f64)) -> f64| {
        let own = turns.iter().filter(move |(known, ..)| *known == name);
        own.skip(1).map(value).collect::<Vec<_>>()
    };
    for name in names {
        report.number(SECTION, name, rounds.median(name), "logins/s", None);
        let p99 = Ratio::of(of(name, |turn| turn.1)).median;
        report.number(SECTION, format!("{name}: p99"), p99, "µs", None);
        let cpu = Ratio::of(of(name, |turn| turn.2)).median;
        let what = format!("{name}: processor time of the server per login");
        report.number(SECTION, what, cpu, "µs", None);
    }
    for (name, goal) in [(CLIENT, Some(Goal::AtLeast(0.97))), (CHROMIUM, None)] {
        let what = format!("logins/s: {name} / {CLOSED}");
        report.ratio(SECTION, what, rounds.ratio(name, CLOSED), goal);
    }
    for name in [CLIENT, CHROMIUM] {
        let (open, closed) = (of(name, |turn| turn.2), of(CLOSED, |turn| turn.2));
        let ratio = Ratio::of(
            open.iter()
                .zip(closed)
                .map(|(open, closed)| open / closed)
                .collect(),
        );
        let what = format!("processor time of the server per login: {name} / {CLOSED}");
        report.ratio(SECTION, what, ratio, Some(Goal::AtMost(1.03)));
    }
}

/// What the page of the overview asks for, every five seconds.
const ALL_POLLED: [&str; 5] = [
    "status",
    "block-counts",
    "busiest?count=8",
    "wrong-blocks",
    "events?event=signal&limit=6",
];
/// One of them, which no other part of the page asks for.
const POLLED: &str = "block-counts";
/// What it follows.
const FOLLOWED: &str = "events/live";

/// Does something while a client follows the events and asks for the rest as often as the page does.
fn beside_client(server: &Server, work: impl FnOnce() -> f64) -> f64 {
    let is_over = AtomicBool::new(false);
    let mut stream = server.get(FOLLOWED);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut line = String::new();
            while !is_over.load(Ordering::Relaxed) {
                line.clear();
                stream.read_line(&mut line).expect("an event each second");
            }
        });
        scope.spawn(|| {
            let mut next = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                if Instant::now() >= next {
                    next += Duration::from_secs(5);
                    for path in ALL_POLLED {
                        let read = server.get(path).read_to_end(&mut Vec::new());
                        read.expect("an answer");
                    }
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Does something while the page is open in a Chromium without a window.
fn beside_chromium(server: &Server, work: impl FnOnce() -> f64) -> f64 {
    let program = env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    let profile = env::temp_dir().join(format!("benches-chromium-{}", std::process::id()));
    let before = [FOLLOWED, POLLED].map(|path| server.asked(path));
    let mut process = Command::new(&program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--window-size=1280,860"])
        // It stays open for this, and not without.
        .arg("--remote-debugging-port=0")
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("http://127.0.0.1:{}/console", server.port))
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} can't be run: {error}; set CHROMIUM to one"));
    let until = Instant::now() + Duration::from_secs(60);
    let is_open = || {
        let now = [FOLLOWED, POLLED].map(|path| server.asked(path));
        now[0] > before[0] && now[1] > before[1]
    };
    while !is_open() {
        assert!(Instant::now() < until, "the page does not open");
        thread::sleep(Duration::from_millis(50));
    }
    // Until all of it is drawn.
    thread::sleep(Duration::from_secs(2));
    let done = work();
    process.kill().expect("a process that runs");
    let _ = process.wait();
    // The processes of its pages end a moment later.
    thread::sleep(Duration::from_millis(500));
    let _ = fs::remove_dir_all(profile);
    done
}

/// A server with a console that ends with this value: see `bin/watched.rs`.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(redis: &RedisServer) -> Self {
        let mut process = Command::new(operated::program("watched"))
            .arg(redis.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process, which is built by benches/run.sh");
        let mut port = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        let read = BufReader::new(stdout).read_line(&mut port);
        read.expect("the port of a server");
        let port = port.trim().parse().expect("the port of a server");
        Self { process, port }
    }

    /// Seconds that it has computed for, as Linux counts them.
    fn cpu(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat =
            fs::read_to_string(path).expect("the times of a process, which only Linux shows");
        // The name, in brackets, may contain anything.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let mut ticks = fields.split_whitespace().skip(11).take(2);
        let mut next = || ticks.next()?.parse::<f64>().ok();
        let both = next().zip(next());
        let (user, system) = both.expect("a number of ticks");
        (user + system) / 100.0
    }

    /// An answer of the console's API, without its first line.
    fn get(&self, path: &str) -> BufReader<TcpStream> {
        self.send(&format!("/console/api/v1/admin/{path}"))
    }

    fn send(&self, path: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let head = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("a request");
        let mut stream = BufReader::new(stream);
        let mut status = String::new();
        stream.read_line(&mut status).expect("a status");
        assert!(status.contains(" 200 "), "{path}: {status}");
        stream
    }

    /// How often the console's API was asked for this.
    fn asked(&self, path: &str) -> u64 {
        let mut text = String::new();
        let read = self.send("/asked").read_to_string(&mut text);
        read.expect("a text");
        let mut counts = text.lines().filter_map(|line| line.rsplit_once(' '));
        let count = counts.find(|(known, _)| known.strip_prefix("/api/v1/admin/") == Some(path));
        count.map_or(0, |(_, count)| count.parse().expect("a number"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
