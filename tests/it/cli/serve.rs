//! `serve`: the HTTP API and the console as a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use reqwest::{Client, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{HOME, Ran, program, redis, run};
use crate::support::RedisServer;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A running server, stopped when dropped.
struct Server {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    introduction: String,
    url: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let command = command.env("LISTEN", "127.0.0.1:0").env("RUST_LOG", "off");
        let mut process = command.stdout(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let mut introduction = String::new();
        let url = lines.find_map(|line| {
            let line = line.expect("a line");
            introduction.push_str(&line);
            line.strip_prefix("Listening on ").map(str::to_owned)
        });
        let url = url.expect("an address");
        Self {
            process,
            lines,
            introduction,
            url,
        }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let request = Client::new()
            .post(format!("{}{path}", self.url))
            .bearer_auth(TOKEN);
        let response = request.json(&body).send().await.expect("a response");
        let status = response.status();
        let body: Value = response.json().await.expect("JSON");
        assert!(status.is_success(), "{status} {body}");
        body
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Response {
        let mut request = Client::new().get(format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.expect("a response")
    }

    async fn guess(&self, outcome: &str) -> bool {
        let login = json!({"address": HOME, "user": "alice"});
        let decision = self.post("/v1/attempts", login).await;
        if let Some(token) = decision["token"].as_str() {
            let path = format!("/v1/attempts/{token}/outcome");
            self.post(&path, json!({"outcome": outcome})).await;
        }
        decision["admitted"].as_bool().expect("a decision")
    }

    /// Sends SIGTERM, and returns its exit code and last words.
    fn stop(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("a signal");
        let code = self.process.wait().expect("ended").code();
        let last = self.lines.by_ref().map_while(Result::ok).last();
        (code, last.unwrap_or_default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_does_not_start_without_a_token() {
    let ran = Ran::of(program().arg("serve").output().unwrap()).ends_with(2);
    assert!(
        ran.error.contains("API_TOKEN") && ran.error.contains("openssl rand -hex 32"),
        "{ran:?}"
    );
    let short = program()
        .arg("serve")
        .env("API_TOKEN", "short")
        .output()
        .unwrap();
    assert!(Ran::of(short).ends_with(2).error.contains("needs 16"));
    let listen = program()
        .arg("serve")
        .env("LISTEN", "here")
        .env("API_TOKEN", TOKEN)
        .output();
    assert!(
        Ran::of(listen.unwrap())
            .ends_with(2)
            .error
            .contains("LISTEN")
    );
}

/// A secret in the wrong place.
#[test]
fn a_mistake_in_the_file_prints_no_password() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("serve.toml");
    for text in [
        "store = \"redis://:hidden@127.0.0.1\"",
        "[store]\nurl = [\"redis://:hidden@127.0.0.1\"]",
        "[store]\nurl = \"redis://:hidden@127.0.0.1",
        "[store]\nuri = \"redis://:hidden@127.0.0.1\"",
        "tokens = \"hidden \\\" hidden\"",
        "[[tokens]]\nname = \"a\"\nroles = \"hidden\"",
        "[[tokens]]\nname = \"a\"\nroles = []\ntoken = \"hidden\"",
    ] {
        fs::write(&file, text).unwrap();
        let mut command = program();
        let ran = command.arg("serve").arg("--config").arg(&file).output();
        let ran = Ran::of(ran.unwrap()).ends_with(1);
        assert!(!ran.error.contains("hidden"), "{text} {ran:?}");
    }
}

#[tokio::test]
async fn without_a_file_it_decides_in_memory_and_logs_that() {
    let server = Server::start(program().arg("serve").env("API_TOKEN", TOKEN));
    assert!(
        server.introduction.contains("Counters are in memory"),
        "{}",
        server.introduction
    );
    for _ in 0..5 {
        assert!(server.guess("failure").await);
    }
    assert!(!server.guess("failure").await);
    let health: Value = server.get("/healthz", None).await.json().await.unwrap();
    assert_eq!(
        health,
        json!({"status": "ok", "degraded": false, "pending": 0})
    );
    assert_eq!(server.get("/v1/admin/blocks", None).await.status(), 401);
    let blocks: Value = server
        .get("/v1/admin/blocks", Some(TOKEN))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(blocks["blocks"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/metrics", None).await.status(), 401);
    let metrics = server
        .get("/metrics", Some(TOKEN))
        .await
        .text()
        .await
        .unwrap();
    assert!(metrics.contains("login_admissions_total 5"), "{metrics}");
    let console = server.get("/", None).await;
    assert_eq!(console.status(), 200);
    assert!(
        console.url().path().starts_with("/console/"),
        "{}",
        console.url()
    );
    assert!(console.headers().contains_key("content-security-policy"));
    assert_eq!(server.get("/nothing", None).await.status(), 404);
    let (code, last) = server.stop();
    assert_eq!(
        (code, &*last),
        (Some(0), "Stopped; all outcomes are written.")
    );
}

fn settings(redis: &RedisServer, more: &str) -> String {
    let file = |name: &str, text: &str| {
        let path = redis.rdb().with_file_name(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let policy = file(
        "policy.toml",
        "[[rules]]\nname = \"user-address\"\nkey = [\"user\", \"address\"]\nlimit = 2\nwithin = \"1 day\"\nblock = \"1 day\"\n",
    );
    let (shop, secret) = (
        file("shop", &format!("{TOKEN}\n")),
        file("secret", "sixteen bytes or more\n"),
    );
    file(
        "serve.toml",
        &format!(
            r#"
listen = "127.0.0.1:0"
policy = "{policy}"
{more}

[store]
url = "{}"
prefix = "shop"
secret_file = "{secret}"
deadline = "20s"

[users]
display = "sealed"
secret_file = "{secret}"

[metrics]
listen = "127.0.0.1:0"

[[tokens]]
name = "shop"
roles = ["decide"]
file = "{shop}"

[[tokens]]
name = "alice@ops"
roles = ["operate"]
env = "ALICE"
"#,
            redis.url()
        ),
    )
}

#[tokio::test]
async fn with_a_file_a_fleet_shares_counters_tokens_of_attempts_and_events() {
    let redis = redis();
    let file = settings(&redis, "");
    let alice = "fedcba9876543210fedcba9876543210";
    let start = || {
        Server::start(
            program()
                .args(["serve", "--config", &file])
                .env("ALICE", alice),
        )
    };
    let (one, two) = (start(), start());
    assert!(
        one.introduction
            .contains("Metrics are at http://127.0.0.1:"),
        "{}",
        one.introduction
    );
    assert!(one.guess("failure").await);
    // Admitted by one, settled by the other.
    let decision = one
        .post("/v1/attempts", json!({"address": HOME, "user": "alice"}))
        .await;
    let path = format!(
        "/v1/attempts/{}/outcome",
        decision["token"].as_str().unwrap()
    );
    two.post(&path, json!({"outcome": "failure"})).await;
    assert!(!two.guess("failure").await);
    assert_eq!(
        one.get("/v1/admin/blocks", Some(TOKEN)).await.status(),
        403,
        "only to decide"
    );
    assert_eq!(
        one.get("/metrics", Some(alice)).await.status(),
        404,
        "on an address of its own"
    );
    // Each shows what happened on the other.
    let mut seen = Value::Null;
    for _ in 0..200 {
        let events = one.get("/v1/admin/events?event=refused", Some(alice)).await;
        seen = events.json().await.unwrap();
        if !seen["events"].as_array().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(seen["events"].as_array().unwrap().len(), 1, "{seen}");
    for server in [one, two] {
        assert_eq!(server.stop().0, Some(0));
    }
    // What was written is there, and only the secret shows the name.
    let secret = redis.rdb().with_file_name("secret").display().to_string();
    let policy = redis.rdb().with_file_name("policy.toml");
    let policy = policy.display().to_string();
    let shop = ["blocked", "--prefix", "shop", "--secret-file", &secret];
    // Another policy, under which it is no block, takes nothing off the list.
    run(&redis, &shop).ends_with(5);
    let shop = [&shop[..], &["--base-policy", &policy]].concat();
    let words = [&shop[..], &["--json"]].concat();
    let sealed = run(&redis, &words).ends_with(0).json("blocked");
    assert!(
        sealed["blocks"][0]["user"]
            .as_str()
            .unwrap()
            .starts_with("sealed:"),
        "{sealed}"
    );
    let words = [&shop[..], &["--seal-secret-file", &secret]].concat();
    assert!(run(&redis, &words).ends_with(0).out.contains(" alice "));
}

impl Server {
    async fn json(&self, path: &str) -> Value {
        let response = self.get(path, Some(TOKEN)).await;
        response.json().await.expect("JSON")
    }

    /// Blocks of the fleet, and those that were probably wrong.
    async fn blocks(&self) -> (u64, u64) {
        let table = self.json("/v1/admin/wrong-blocks").await;
        let rows = table["rows"].as_array().expect("rows");
        let sum = |name: &str| rows.iter().filter_map(|row| row[name].as_u64()).sum();
        (sum("blocks"), sum("wrong"))
    }

    async fn waits_for_blocks(&self, blocks: (u64, u64)) {
        for _ in 0..400 {
            if self.blocks().await == blocks {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?}, not {blocks:?}", self.blocks().await);
    }
}

/// A user is blocked through one instance and logs in through another.
#[tokio::test]
async fn a_fleet_counts_wrong_blocks_of_all_instances_however_users_are_shown() {
    let redis = redis();
    let file = |name: &str, text: &str| {
        let path = redis.rdb().with_file_name(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let policy = file(
        "short.toml",
        "[[rules]]\nname = \"user-address\"\nkey = [\"user\", \"address\"]\nlimit = 2\nwithin = \"1 second\"\nblock = \"1 second\"\n",
    );
    let secret = file("users", "a secret for users\n");
    // Without a key secret, with one, and with each kind of display.
    let key = format!("[store]\nsecret_file = \"{secret}\"");
    let of_users = format!("\nsecret_file = \"{secret}\"");
    for (name, store, users) in [
        ("hidden", "", ""),
        ("hidden", &*key, ""),
        ("masked", "", ""),
        ("hashed", &*key, &*of_users),
        ("sealed", "", &*of_users),
        ("clear", &*key, ""),
    ] {
        redis.flush();
        let settings =
            format!("policy = \"{policy}\"\n{store}\n[users]\ndisplay = \"{name}\"{users}\n");
        let settings = file("fleet.toml", &settings);
        let start = || {
            Server::start(
                program()
                    .args(["serve", "--config", &settings])
                    .env("REDIS_URL", redis.url())
                    .env("API_TOKEN", TOKEN),
            )
        };
        let (one, other) = (start(), start());
        while one.guess("failure").await {}
        other.waits_for_blocks((1, 0)).await;
        while !other.guess("success").await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for server in [&one, &other] {
            server.waits_for_blocks((1, 1)).await;
        }
        // Long enough for a second one.
        tokio::time::sleep(Duration::from_millis(800)).await;
        let mut counted = 0;
        for server in [&one, &other] {
            let events = server.json("/v1/admin/events?event=wrong_block").await;
            let events = events["events"].as_array().unwrap().len();
            assert_eq!(events, 1, "{name} {store}");
            let metrics = server.get("/metrics", Some(TOKEN)).await;
            let metrics = metrics.text().await.unwrap();
            let line = "login_wrong_blocks_total{rule=\"user-address\"} ";
            let line = metrics.lines().find_map(|text| text.strip_prefix(line));
            counted += line.map_or(0, |count| count.parse::<u64>().unwrap());
        }
        assert_eq!(counted, 1, "{name} {store}");
    }
}

#[tokio::test]
async fn a_key_of_the_settings_that_is_unknown_is_named() {
    let redis = redis();
    let file = settings(&redis, "prefx = \"login\"");
    let output = program()
        .args(["serve", "--config", &file])
        .env("ALICE", TOKEN)
        .output();
    let ran = Ran::of(output.unwrap()).ends_with(1);
    assert!(
        ran.error
            .contains("serve.toml: line 4: unknown field `prefx`"),
        "{ran:?}"
    );
    let file = settings(&redis, "");
    let ran = Ran::of(
        program()
            .args(["serve", "--config", &file])
            .output()
            .unwrap(),
    )
    .ends_with(2);
    assert!(ran.error.contains("the token of alice@ops"), "{ran:?}");
}

/// Settings in memory, with these beside the token.
fn in_memory(directory: &tempfile::TempDir, more: &str) -> Server {
    let path = directory.path().join("serve.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\n{more}\n[[tokens]]\nname = \"api\"\nroles = [\"decide\", \"operate\"]\n\
         env = \"API_TOKEN\"\n"
    );
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    Server::start(
        program()
            .args(["serve", "--config", &path])
            .env("API_TOKEN", TOKEN),
    )
}

/// Sends a text, then one byte every 100 ms, and returns how long it takes until the server closes.
fn dribble(url: &str, begin: &'static [u8], more: &'static [u8]) -> Duration {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let tenth = Duration::from_millis(100);
    stream.set_read_timeout(Some(tenth)).unwrap();
    let began = Instant::now();
    let _ = stream.write_all(begin);
    let mut more = more.iter().cycle();
    while began.elapsed() < Duration::from_secs(20) {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => break,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            _ => {}
        }
        if let Some(byte) = more.next() {
            let _ = stream.write_all(&[*byte]);
        }
    }
    began.elapsed()
}

/// An HTTP/2 connection without a request, and one whose request has no end.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
const OPEN_HEADERS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\
\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82";

#[tokio::test]
async fn a_client_that_never_ends_its_request_keeps_no_connection() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "[connections]\nidle = \"1s\"\nrequest = \"2s\"");
    // One that reads is not cut off, however quiet it is.
    let live = Client::new().get(format!("{}/v1/admin/events/live", server.url));
    let mut live = live.bearer_auth(TOKEN).send().await.unwrap();
    let clients: [(&[u8], &[u8]); 6] = [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ", b"x"),
        (b"PRI * HTTP/2.0\r\n", b""),
        (PREFACE, b""),
        (OPEN_HEADERS, b""),
        (
            b"POST /console/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n\
              Content-Length: 100000\r\n\r\ntoken=",
            b"x",
        ),
    ];
    let slow = clients.map(|(begin, more)| {
        let url = server.url.clone();
        thread::spawn(move || dribble(&url, begin, more))
    });
    while !slow.iter().all(thread::JoinHandle::is_finished) {
        let began = Instant::now();
        assert_eq!(server.get("/healthz", None).await.status(), 200);
        assert!(began.elapsed() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (slow, (begin, _)) in slow.into_iter().zip(clients) {
        let lasted = slow.join().unwrap();
        let begin = String::from_utf8_lossy(begin);
        assert!(lasted < Duration::from_secs(10), "{begin:?} {lasted:?}");
    }
    assert!(live.chunk().await.unwrap().is_some());
    assert_eq!(server.stop().0, Some(0));
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags, 0, 0, 0, stream]].concat();
    [&head, payload].concat()
}

/// Asks for a page by HTTP/2 and gives it a window of this many bytes, acknowledges all pings, and returns how long it
/// takes until the server closes.
fn leave_unread(url: &str, window: u8) -> Duration {
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    let limit = Duration::from_secs(10);
    stream.set_read_timeout(Some(limit)).unwrap();
    let began = Instant::now();
    let path = b"/v1/openapi.json";
    let headers = [&[0x82, 0x86, 0x01, 1, b'a', 0x04, 16][..], path].concat();
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, window]);
    let request = frame(1, 5, 1, &headers);
    let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*settings, &request].concat();
    stream.write_all(&begin).unwrap();
    let mut is_answered = false;
    while began.elapsed() < limit {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        match (head[3], head[4] & 1) {
            (SETTINGS, 0) => drop(stream.write_all(&frame(SETTINGS, 1, 0, &[]))),
            (PING, 0) => drop(stream.write_all(&frame(PING, 1, 0, &payload))),
            (1, _) => is_answered = true,
            _ => {}
        }
    }
    assert!(is_answered, "the request is valid");
    began.elapsed()
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_keeps_no_connection() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "[connections]\nidle = \"1s\"");
    let unread = [0, 1].map(|window| {
        let url = server.url.clone();
        thread::spawn(move || leave_unread(&url, window))
    });
    // Streams that are read last longer, although their ticks are as far apart.
    let path = format!("{}/v1/admin/events/live", server.url);
    let http2 = Client::builder().http2_prior_knowledge().build().unwrap();
    let began = Instant::now();
    let mut streams = Vec::new();
    for client in [Client::new(), http2] {
        let live = client.get(&path).bearer_auth(TOKEN).send().await.unwrap();
        assert_eq!(live.status(), 200);
        streams.push(live);
    }
    while began.elapsed() < Duration::from_secs(5) {
        for live in &mut streams {
            assert!(live.chunk().await.unwrap().is_some());
        }
    }
    for unread in unread {
        let lasted = unread.join().unwrap();
        assert!(lasted < Duration::from_secs(5), "{lasted:?}");
    }
}

/// Asks for a page by HTTP/2 and takes a little of it at a time, for longer than a connection may be idle. Returns
/// whether it was complete.
fn read_slowly(url: &str) -> bool {
    const WINDOW: u32 = 16 * 1024;
    const DATA: u8 = 0;
    const WINDOW_UPDATE: u8 = 8;
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let headers = [
        &[0x82, 0x86, 0x01, 1, b'a', 0x04, 16][..],
        b"/v1/openapi.json",
    ]
    .concat();
    let settings = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    let begin = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &*frame(4, 0, 0, &settings),
        &frame(1, 5, 1, &headers),
    ];
    stream.write_all(&begin.concat()).unwrap();
    let (mut since_update, mut updates) = (0, 0);
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if stream.read_exact(&mut payload).is_err() {
            return false;
        }
        if head[3] != DATA {
            continue;
        }
        if head[4] & 1 == 1 {
            assert!(updates > 5, "the page is too short for this test");
            return true;
        }
        since_update += length;
        if since_update >= WINDOW {
            thread::sleep(Duration::from_millis(300));
            let more = since_update.to_be_bytes();
            let update = [
                frame(WINDOW_UPDATE, 0, 0, &more),
                frame(WINDOW_UPDATE, 0, 1, &more),
            ];
            let _ = stream.write_all(&update.concat());
            (since_update, updates) = (0, updates + 1);
        }
    }
}

#[test]
fn a_client_that_takes_a_large_answer_slowly_receives_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "[connections]\nidle = \"1s\"");
    assert!(read_slowly(&server.url));
}

/// How many sockets the server has.
fn sockets(server: &Server) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

fn connect(address: &str, text: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(text);
    stream
}

#[tokio::test]
async fn connections_beyond_the_maximum_replace_those_that_wait_for_their_client() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "[connections]\nmaximum = 4");
    let address = server.url.trim_start_matches("http://");
    let live = Client::new().get(format!("{}/v1/admin/events/live", server.url));
    let mut live = live.bearer_auth(TOKEN).send().await.unwrap();
    let held: [&[u8]; 4] = [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ",
        b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /console/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n\
          Content-Length: 1000\r\n\r\ntoken=",
    ];
    for text in held {
        let held: Vec<_> = (0..40).map(|_| connect(address, text)).collect();
        thread::sleep(Duration::from_millis(300));
        assert!(sockets(&server) < 20, "{} sockets", sockets(&server));
        let health = server.get("/healthz", None);
        let health = tokio::time::timeout(Duration::from_secs(5), health).await;
        assert_eq!(health.expect("in time").status(), 200);
        drop(held);
    }
    // One with a request under way is not closed.
    for _ in 0..3 {
        assert!(live.chunk().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn connections_for_metrics_are_few() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "[metrics]\nlisten = \"127.0.0.1:0\"");
    let (_, metrics) = server
        .introduction
        .split_once("Metrics are at http://")
        .unwrap();
    let (address, _) = metrics.split_once("/metrics").unwrap();
    let _idle: Vec<_> = (0..200).map(|_| connect(address, b"")).collect();
    thread::sleep(Duration::from_millis(500));
    assert!(sockets(&server) < 60, "{} sockets", sockets(&server));
    let metrics = reqwest::get(format!("http://{address}/metrics")).await;
    assert_eq!(metrics.unwrap().status(), 200);
}

#[test]
fn a_connection_that_can_not_be_accepted_is_logged_once_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let server = Server::start(
        Command::new("sh")
            .args([
                "-c",
                "ulimit -n 40; RUST_LOG=warn exec \"$0\" serve 2>\"$1\"",
            ])
            .args([program().get_program(), log.as_os_str()])
            .env("API_TOKEN", TOKEN)
            .env_remove("REDIS_URL"),
    );
    let address = server.url.trim_start_matches("http://");
    let _idle: Vec<_> = (0..60).map(|_| connect(address, b"")).collect();
    thread::sleep(Duration::from_millis(1_500));
    let log = fs::read_to_string(log).unwrap();
    let lines = log.matches("can't be accepted").count();
    assert!((1..=3).contains(&lines), "{log}");
}

#[test]
fn the_head_of_a_request_has_a_maximum() {
    let directory = tempfile::tempdir().unwrap();
    let server = in_memory(&directory, "");
    let address = server.url.trim_start_matches("http://");
    let mut stream = connect(address, b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: ");
    let limit = Duration::from_secs(5);
    stream.set_read_timeout(Some(limit)).unwrap();
    let _ = stream.write_all(&vec![b'x'; 100_000]);
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");
}
