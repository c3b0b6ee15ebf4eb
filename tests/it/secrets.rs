//! Names, passwords and secrets, searched for in all that leaves a process with everything switched on.

use std::{fmt::Write as _, fs, sync::Mutex, time::Duration};

use axum::{Form, Router, body::Body, response::IntoResponse, routing::post};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tower::ServiceExt;
use tower_login_rate_limit::{
    Caller, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Period, Policy, ReserveError,
    access::{AccessQuery, AccessRule, Field},
    admin::{Admin, Author, BlockFilter, Forgive, Subject},
    event::{Feed, JsonLines, RedisStream, Sealer, TracingObserver, UserDisplay, UserHasher},
    extract::{FormField, PeerAddressExtension},
    insight::{Insight, Signals},
    live::Canary,
    store::RedisStore,
};

use crate::{
    log::Log,
    support::{RedisServer, ip},
};

/// As typed. What is in clear anywhere is this, or its normal form.
const NAME: &str = "Zq7Marker.Kxv@Hidden-Domain.test";
/// What a search finds a part of the name by.
const NAME_PARTS: [&str; 3] = ["Zq7Marker", "Kxv@Hidden", "Hidden-Domain"];
const PASSWORD: &str = "correct-Wy4Horse-battery";
const WRONG_PASSWORD: &str = "guess-Tr0ubadour-3";
const KEY_SECRET: &str = "Qk3-secret-of-the-keys-in-redis";
const DISPLAY_SECRET: &str = "Vm8-secret-of-the-shown-names";
const INSIGHT_SECRET: &str = "Jx5-secret-of-the-insight-hash";
const REDIS_PASSWORD: &str = "Hw2-password-of-the-redis-user";
const SECRETS: [&str; 6] = [
    PASSWORD,
    WRONG_PASSWORD,
    KEY_SECRET,
    DISPLAY_SECRET,
    INSIGHT_SECRET,
    REDIS_PASSWORD,
];

const HOME: &str = "192.0.2.77";
const ATTACKER: &str = "203.0.113.9";

// --- The search ---

/// A text in each form in which it could be written by mistake.
struct Needle {
    what: String,
    bytes: Vec<u8>,
    ignores_case: bool,
}

fn needles(text: &str) -> Vec<Needle> {
    let mut needles = Vec::new();
    let mut add = |encoding: &str, bytes: Vec<u8>, ignores_case: bool| {
        let bytes = if ignores_case {
            bytes.to_ascii_lowercase()
        } else {
            bytes
        };
        needles.push(Needle {
            what: format!("{text:?} {encoding}"),
            bytes,
            ignores_case,
        });
    };
    add("in clear", text.into(), true);
    let encoded = utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    add("percent-encoded", encoded.into_bytes(), true);
    for spelled in [text.to_owned(), text.to_lowercase(), text.to_uppercase()] {
        let each = |form: fn(u8) -> String| spelled.bytes().map(form).collect::<String>();
        add("in hex", each(|b| format!("{b:02x}")).into_bytes(), true);
        let percent = each(|b| format!("%{b:02x}"));
        add("percent-encoded throughout", percent.into_bytes(), true);
        let escaped = each(|b| format!("\\u{b:04x}"));
        add("escaped", escaped.into_bytes(), true);
        let bytes = format!("{:?}", spelled.as_bytes());
        add("as numbers", bytes[1..bytes.len() - 1].into(), true);
        // Wherever it begins within a text that is encoded as a whole.
        for before in 0..3 {
            let padded = [vec![0; before], spelled.clone().into_bytes()].concat();
            for alphabet in [&STANDARD, &URL_SAFE] {
                let encoded = alphabet.encode(&padded);
                let own = (before * 8).div_ceil(6)..padded.len() * 8 / 6;
                add("in base64", encoded[own].into(), false);
            }
        }
    }
    needles
}

/// What of these texts occurs in the output.
fn found(texts: &[&str], output: &[u8]) -> Option<String> {
    let lower = output.to_ascii_lowercase();
    let needles = texts.iter().flat_map(|text| needles(text));
    needles
        .filter(|needle| {
            let output = if needle.ignores_case { &lower } else { output };
            let mut windows = output.windows(needle.bytes.len());
            windows.any(|window| window == needle.bytes)
        })
        .map(|needle| needle.what)
        .next()
}

/// Fails with this search as soon as something is not found that is there.
#[test]
fn the_search_finds_what_is_there_in_any_form() {
    let hex = |text: &str| text.bytes().map(|b| format!("{b:02X}")).collect::<String>();
    let percent = |text: &str| {
        text.bytes()
            .map(|b| format!("%{b:02X}"))
            .collect::<String>()
    };
    let json = |text: &str| {
        text.bytes()
            .map(|b| format!("\\u{b:04x}"))
            .collect::<String>()
    };
    for part in NAME_PARTS.into_iter().chain(SECRETS) {
        for (i, hidden) in [
            part.to_owned(),
            part.to_lowercase(),
            hex(part),
            hex(&part.to_lowercase()),
            percent(part),
            json(part),
            STANDARD.encode(part),
            STANDARD.encode(format!("x{part}")),
            URL_SAFE.encode(format!("xx{}yy", part.to_lowercase())),
            format!("{:?}", part.as_bytes()),
            utf8_percent_encode(part, NON_ALPHANUMERIC).to_string(),
        ]
        .into_iter()
        .enumerate()
        {
            let output = format!("before {hidden} after");
            assert!(found(&[part], output.as_bytes()).is_some(), "{i}: {output}");
        }
    }
    let all = [NAME_PARTS.as_slice(), &SECRETS].concat();
    assert_eq!(
        found(&all, b"z***@h*** of 192.0.2.77, hash:5bd4e1f0a2c39687"),
        None
    );
}

// --- An app with everything switched on ---

#[derive(Deserialize)]
struct Login {
    email: String,
    password: String,
}

/// Finds the account by any spelling, as most apps do.
async fn log_in(
    attempt: LoginAttempt,
    Form(login): Form<Login>,
) -> Result<StatusCode, ReserveError> {
    let is_known = login.email.eq_ignore_ascii_case(NAME);
    attempt.identify(&login.email).await?;
    Ok(match (is_known, login.password == PASSWORD) {
        (true, true) => {
            attempt.succeeded();
            StatusCode::OK
        }
        (true, false) => {
            attempt.failed();
            StatusCode::UNAUTHORIZED
        }
        (false, _) => {
            attempt.unknown_user();
            StatusCode::UNAUTHORIZED
        }
    })
}

/// What leaves the process, and where it is read from.
struct App {
    router: Router,
    limiter: LoginLimiter,
    admin: Admin,
    redis: RedisServer,
    monitor: redis::Connection,
    /// What was sent to Redis.
    sent: String,
    log: Log,
    directory: tempfile::TempDir,
    feed: Feed,
    /// Debug forms and messages of everything public that was at hand.
    debug: Mutex<String>,
    responses: Mutex<String>,
}

fn author() -> Author {
    Author::new("bob@support", "ticket 4711").unwrap()
}

impl App {
    async fn start(display: &UserDisplay, dispatch: tracing::Dispatch, log: Log) -> Self {
        // What is compressed can't be searched.
        let mut redis = RedisServer::start_with(&["--rdbcompression", "no"]);
        redis.keys_may_live(None);
        let permitted = format!(">{REDIS_PASSWORD}");
        redis.command::<()>(&[
            "ACL", "SETUSER", "app", "on", &permitted, "~*", "&*", "+@all",
        ]);
        let url = format!("redis://app:{REDIS_PASSWORD}@127.0.0.1:{}", redis.port());
        let mut monitor = redis.connection();
        monitor
            .send_packed_command(b"*1\r\n$7\r\nMONITOR\r\n")
            .unwrap();
        monitor.recv_response().unwrap();

        let builder = RedisStore::builder()
            .with_secret(KEY_SECRET)
            .with_deadline(Duration::from_secs(4));
        let mut debug = format!("{builder:?}");
        let store = builder.connect(&url).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = JsonLines::open(directory.path().join("events")).unwrap();
        let tracing = TracingObserver::new().with_dispatch(dispatch);
        let hasher = UserHasher::new(INSIGHT_SECRET).unwrap();
        // So few that each signal is given.
        let signals = Signals::new().with_many_users(2).with_many_addresses(2);
        let insight = Insight::new(hasher.clone()).with_signals(signals);
        let stream = RedisStream::builder().with_insight(insight.clone());
        let stream = stream.open(&url).unwrap();
        let feed = Feed::new(1_000);
        write!(
            debug,
            "{store:?} {file:?} {stream:?} {tracing:?} {hasher:?} {insight:?} {feed:?} {display:?} {:?} {:?}",
            stream.reader(),
            Sealer::new(DISPLAY_SECRET).unwrap(),
        )
        .unwrap();
        let limiter = LoginLimiter::new(Policy::strict(), store)
            .with_user_display(display.clone())
            .with_insight(insight)
            .with_observer(tracing)
            .with_observer(file)
            .with_observer(stream)
            .with_observer(feed.clone())
            .live()
            .await
            .unwrap();
        let layer =
            LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("email"));
        write!(debug, "{limiter:?} {layer:?}").unwrap();
        Self {
            router: Router::new().route("/login", post(log_in).layer(layer)),
            admin: limiter.admin().unwrap(),
            limiter,
            redis,
            monitor,
            sent: String::new(),
            log,
            directory,
            feed,
            debug: Mutex::new(debug),
            responses: Mutex::default(),
        }
    }

    /// Notes the debug forms of a value.
    fn shown<T: std::fmt::Debug>(&self, value: T) -> T {
        writeln!(self.debug.lock().unwrap(), "{value:?} {value:#?}").unwrap();
        value
    }

    async fn log_in(&self, address: &str, user: &str, password: &str) -> StatusCode {
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("email", user)
            .append_pair("password", password)
            .finish();
        let mut request = Request::post("/login")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header("accept", "text/html, application/problem+json")
            .body(Body::from(form))
            .unwrap();
        let peer = PeerAddressExtension((ip(address), 5000).into());
        request.extensions_mut().insert(peer);
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_response().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body);
        writeln!(self.responses.lock().unwrap(), "{head:?}\n{body}").unwrap();
        head.status
    }

    /// Logins of all kinds.
    async fn serve(&self) {
        assert_eq!(self.log_in(HOME, NAME, PASSWORD).await, 200);
        let lower = NAME.to_lowercase();
        for guess in 0..5 {
            let user = if guess % 2 == 0 { NAME } else { &lower };
            assert_eq!(self.log_in(ATTACKER, user, WRONG_PASSWORD).await, 401);
        }
        for _ in 0..3 {
            assert_eq!(self.log_in(ATTACKER, NAME, WRONG_PASSWORD).await, 429);
        }
        // Nobody's name, which is the other half of a secret: people type passwords into the field of the name.
        for typed in [format!("{NAME}x"), format!("x{NAME}")] {
            assert_eq!(self.log_in(ATTACKER, &typed, WRONG_PASSWORD).await, 401);
        }
        assert_eq!(self.log_in("198.51.100.3", NAME, WRONG_PASSWORD).await, 401);

        let caller = Caller::new(ip("198.51.100.4")).with_user(NAME);
        self.shown(&caller);
        let code = self.limiter.reserve(caller.with_second_factor(true)).await;
        let code = self.shown(code).unwrap();
        code.settle(Outcome::Failure).await.unwrap();
        let pending = self.limiter.reserve((ip("198.51.100.4"), NAME)).await;
        pending.unwrap().settle(Outcome::MfaPending).await.unwrap();
        let refused = self.limiter.reserve((ip(ATTACKER), NAME)).await;
        assert!(matches!(self.shown(refused), Err(ReserveError::Refused(_))));
        let report = self.limiter.check((ip(ATTACKER), NAME)).await.unwrap();
        self.shown(report);
        let _ = self.shown(AccessQuery::new().with_user(NAME));
    }

    /// Everything that an operator does without naming a user in a rule.
    async fn operate(&self) {
        let (admin, author) = (&self.admin, author());
        self.shown(admin);
        let user = self.shown(Subject::user(NAME));
        let pair = self.shown(Subject::pair(ip(ATTACKER), NAME));
        let filter = self.shown(BlockFilter::new().with_user(NAME));
        let page = self.shown(admin.blocks(&filter).await.unwrap());
        assert_eq!(page.blocks.len(), 1);
        self.shown(admin.explain(&user).await.unwrap());
        self.shown(admin.explain(&pair).await.unwrap());
        admin.note(user.clone(), &author).unwrap();
        let known = self.shown(admin.known_addresses(NAME).await.unwrap());
        assert_eq!(known.len(), 1);
        let unblocked = admin.unblock(pair, &author).await.unwrap();
        assert_eq!(self.shown(unblocked).count, 1);
        let forgive = self.shown(Forgive::user(NAME));
        self.shown(admin.forgive(&forgive, &author).await.unwrap());
        admin
            .forget_address(NAME, Some(known[0]), &author)
            .await
            .unwrap();
        // Known and blocked again, for the lists and the reports that follow.
        assert_eq!(self.log_in(HOME, NAME, PASSWORD).await, 200);
        for _ in 0..5 {
            assert_eq!(self.log_in(ATTACKER, NAME, WRONG_PASSWORD).await, 401);
        }
        assert_eq!(self.log_in(ATTACKER, NAME, WRONG_PASSWORD).await, 429);

        let scanner = AccessRule::deny("scanner", Field::Network, "198.51.100.128/25").unwrap();
        admin.add_access_rule(scanner, &author).await.unwrap();
        assert_eq!(self.log_in("198.51.100.200", NAME, PASSWORD).await, 403);
        let current = admin.ruleset().await.unwrap();
        let canary = Canary::new(Policy::default(), 1.0).unwrap();
        let tried = current.ruleset.clone().with_canary(canary);
        let replaced = admin.replace_ruleset(current.version, tried, &author).await;
        replaced.unwrap();
        self.shown(admin.history().await.unwrap());
        self.shown(admin.wrong_blocks());
        assert!(
            !self
                .shown(admin.busiest(10).await.unwrap())
                .users
                .is_empty()
        );
        // The report of this instance has the busiest users by now.
        let has_users = || async {
            let instances = admin.instances().await.unwrap();
            let reported = !instances.is_empty() && !instances[0].busiest.users.is_empty();
            self.shown(instances);
            reported
        };
        while !has_users().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// All that has left the process so far, by where it went.
    async fn outputs(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        self.limiter.all_settled().await.unwrap();
        let events = self.feed.latest(usize::MAX, |_| true);
        let events = format!("{events:?} {events:#?}");
        let stream: redis::Value = self.redis.command(&["XRANGE", "login:events", "-", "+"]);
        let mut keys = Vec::new();
        for (key, _) in self.redis.keys() {
            let value: Option<Vec<u8>> = self.redis.command(&["DUMP", &key]);
            keys.extend_from_slice(key.as_bytes());
            keys.push(b' ');
            keys.extend(value.unwrap_or_default());
        }
        self.redis.command::<()>(&["SAVE"]);
        let file = self.directory.path().join("events");
        vec![
            ("log", self.log.text().into_bytes()),
            ("file", fs::read(file).unwrap()),
            ("stream", format!("{stream:?}").into_bytes()),
            ("events", events.into_bytes()),
            ("monitor", self.monitored()),
            ("keys", keys),
            ("rdb", fs::read(self.redis.rdb()).unwrap()),
            ("debug", self.debug.lock().unwrap().clone().into_bytes()),
            (
                "responses",
                self.responses.lock().unwrap().clone().into_bytes(),
            ),
        ]
    }

    /// What was sent to Redis so far.
    fn monitored(&mut self) -> Vec<u8> {
        let end = format!("the-end-{}", self.sent.len());
        self.redis.command::<()>(&["ECHO", &end]);
        while !self.sent.contains(&end) {
            let line = self.monitor.recv_response().unwrap();
            writeln!(self.sent, "{line:?}").unwrap();
        }
        self.sent.clone().into_bytes()
    }

    /// Redis dies, and logins go on.
    async fn outage(&mut self) {
        self.redis.kill();
        // The breaker opens when no call has succeeded for twice the deadline.
        for i in 0..600 {
            let address = format!("198.18.{}.{}", i / 250, i % 250);
            // Of another account each time: one that is blocked meanwhile is refused without a call.
            self.log_in(&address, &format!("{NAME}{i}"), WRONG_PASSWORD)
                .await;
            if self.log.count("the store is unavailable") > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the outage is not in the log:\n{}", self.log.text());
    }
}

/// Runs the app on this thread with a recorder of its own, and hands over what `test` needs.
fn with_app<F: Future<Output = ()>>(display: &UserDisplay, test: impl FnOnce(App) -> F) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let dispatch = tracing::Dispatch::new(subscriber);
    let _guard = tracing::dispatcher::set_default(&dispatch);
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let app = App::start(display, dispatch.clone(), log).await;
            test(app).await;
        });
    });
    recorder.handle().render()
}

fn assert_none(texts: &[&str], display: &str, outputs: &[(&'static str, Vec<u8>)]) {
    for (output, bytes) in outputs {
        if let Some(what) = found(texts, bytes) {
            let text = String::from_utf8_lossy(bytes);
            panic!("{display}: {what} is in the {output}:\n{text}");
        }
    }
}

/// The outputs that have the name in them, in one form or another.
fn with_name(outputs: &[(&'static str, Vec<u8>)]) -> Vec<&'static str> {
    let with_name = outputs
        .iter()
        .filter(|(_, bytes)| found(&NAME_PARTS, bytes).is_some());
    with_name.map(|(output, _)| *output).collect()
}

/// Where names are if the app wants them in clear: events, the list of blocks, and the reports of the busiest.
const CLEAR: [&str; 8] = [
    "log", "file", "stream", "events", "monitor", "keys", "rdb", "debug",
];

fn nothing_is_found(name: &str, display: &UserDisplay) {
    let metrics = with_app(display, async |mut app| {
        app.serve().await;
        app.operate().await;
        let outputs = app.outputs().await;
        for (output, expected) in [
            ("log", "login block began"),
            ("log", "login attempts look like an attack"),
            ("file", "\"event\":\"administered\""),
            ("file", "\"event\":\"document_changed\""),
            ("file", "\"event\":\"wrong_block\""),
            ("stream", "block_lifted"),
            ("monitor", "EVALSHA"),
            ("monitor", "PUBLISH"),
            ("keys", "known::addresses"),
            ("keys", "login:{blocks"),
            ("rdb", "busiest"),
            ("responses", "429"),
        ] {
            let (_, bytes) = outputs.iter().find(|(name, _)| *name == output).unwrap();
            let text = String::from_utf8_lossy(bytes);
            assert!(
                text.contains(expected),
                "{expected} in the {output}:\n{text}"
            );
        }
        assert_none(&SECRETS, name, &outputs);
        let is_clear = matches!(display, UserDisplay::Clear);
        let expected: &[&str] = if is_clear { &CLEAR } else { &[] };
        assert_eq!(with_name(&outputs), expected, "{name}");

        // A rule that names a user is the exception: it has to be compared, and shown to operators.
        let author = author();
        let lasts = Period::days(1);
        let rule = app.admin.block(Subject::user(NAME), lasts, &author).await;
        let rule = rule.unwrap();
        assert_eq!(app.log_in(HOME, NAME, PASSWORD).await, 403);
        let rules = app.shown(app.admin.ruleset().await.unwrap());
        let written = serde_json::to_string(&rules).unwrap();
        assert!(written.contains(NAME), "{written}");
        let outputs = app.outputs().await;
        let in_redis = ["monitor", "keys", "rdb"];
        let expected: &[&str] = if is_clear { &CLEAR } else { &in_redis };
        assert_eq!(with_name(&outputs), expected, "{name}");
        // Also when it is removed, as a version of the past.
        let removed = app.admin.remove_access_rule(&rule, &author).await;
        removed.unwrap();
        let outputs = app.outputs().await;
        assert_eq!(with_name(&outputs), expected, "{name}");
        assert_none(&SECRETS, name, &outputs);

        app.outage().await;
        let log = app.log.text().into_bytes();
        assert_none(&SECRETS, name, &[("log", log.clone())]);
        assert_eq!(found(&NAME_PARTS, &log).is_some(), is_clear, "{name}");
    });
    assert!(metrics.contains("login_blocks_begun_total"), "{metrics}");
    let all = [NAME_PARTS.as_slice(), &SECRETS].concat();
    assert_none(&all, name, &[("metrics", metrics.into_bytes())]);
}

#[test]
fn nothing_is_found_where_users_are_hidden_which_is_the_default() {
    assert!(matches!(UserDisplay::default(), UserDisplay::Hidden));
    nothing_is_found("hidden", &UserDisplay::default());
}

#[test]
fn nothing_is_found_where_users_are_masked() {
    nothing_is_found("masked", &UserDisplay::Masked);
}

#[test]
fn nothing_is_found_where_users_are_hashed() {
    let hashed = UserDisplay::hashed(DISPLAY_SECRET).unwrap();
    nothing_is_found("hashed", &hashed);
}

#[test]
fn nothing_is_found_where_users_are_sealed() {
    let sealed = UserDisplay::sealed(DISPLAY_SECRET).unwrap();
    nothing_is_found("sealed", &sealed);
}

#[test]
fn names_in_clear_are_where_they_are_documented_and_secrets_nowhere() {
    nothing_is_found("clear", &UserDisplay::Clear);
}

/// A server that can't be reached, or does not accept the password, is reported without it.
#[tokio::test]
async fn no_error_names_a_password() {
    let mut redis = RedisServer::start();
    let permitted = format!(">{KEY_SECRET}");
    redis.command::<()>(&[
        "ACL", "SETUSER", "app", "on", &permitted, "~*", "&*", "+@all",
    ]);
    let url = format!("redis://app:{REDIS_PASSWORD}@127.0.0.1:{}", redis.port());
    let (log, _guard) = Log::start();
    let wrong = RedisStore::connect(&url).await.unwrap_err();
    redis.kill();
    let refused = RedisStore::connect(&url).await.unwrap_err();
    let invalid = RedisStore::connect(url.replace("127.0.0.1:", "127.0.0.1:x"));
    let invalid = invalid.await.unwrap_err();
    let stream = RedisStream::open(url.replace("redis:", "rediss:")).map(drop);
    let reader = RedisStream::open(&url).unwrap().reader().read(1).await;
    for error in [
        format!("{wrong} {wrong:?}"),
        format!("{refused} {refused:?}"),
        format!("{invalid} {invalid:?}"),
        format!("{stream:?}"),
        format!("{reader:?}"),
        log.text(),
    ] {
        assert_none(&SECRETS, "an error", &[("text", error.into_bytes())]);
    }
}

/// What is typed forges no line and moves no cursor, also where it is shown in clear and kept as it is.
#[tokio::test]
async fn a_login_injects_nothing_into_the_log_or_the_file() {
    let forged = "2026-11-18T07:00:00.000000Z ERROR login_rate_limit: forged";
    let typed =
        format!("zed\n{forged}\r\n{{\"event\":\"forged\"}}\u{1b}[2J\u{9b}2J\u{202e}\u{2028}\u{0}");
    let (log, _guard) = Log::start();
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let store = tower_login_rate_limit::store::MemoryStore::new();
    // The default removes control characters.
    let limiter = LoginLimiter::new(Policy::default(), store)
        .with_normalizer(str::to_owned)
        .with_user_display(UserDisplay::Clear)
        .with_observer(TracingObserver::new().with_dispatch(dispatch))
        .with_observer(JsonLines::open(&path).unwrap());
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("email"));
    let router = Router::new().route("/login", post(log_in).layer(layer));
    let form = form_urlencoded::Serializer::new(String::new())
        .append_pair("email", &typed)
        .append_pair("password", "x")
        .finish();
    for attempt in 0..6 {
        let mut request = Request::post(format!("/login?{forged}%0A%1b[2J").replace(' ', "%20"))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header("user-agent", "\u{1b}[2J".escape_default().to_string())
            .body(Body::from(form.clone()))
            .unwrap();
        let peer = PeerAddressExtension((ip(HOME), 5000).into());
        request.extensions_mut().insert(peer);
        let status = router.clone().oneshot(request).await.unwrap().status();
        assert_eq!(status, if attempt < 5 { 401 } else { 429 });
    }
    assert!(limiter.observed().await);
    // Five failures, the block, and the refusal.
    let file = fs::read_to_string(&path).unwrap();
    let events: Vec<serde_json::Value> = file
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let names: Vec<_> = events.iter().map(|event| &event["event"]).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(events.iter().all(|event| event["user"] == typed), "{file}");
    let log = log.text();
    for line in log.lines() {
        assert!(
            !line.starts_with(forged) && !line.starts_with('{'),
            "{line}"
        );
        let (_, rest) = line.split_once("Z ").expect("a time");
        let level = rest.trim_start().split(' ').next();
        assert!(
            matches!(level, Some("TRACE" | "DEBUG" | "INFO" | "WARN")),
            "{line}"
        );
    }
    assert_eq!(log.matches("login attempt settled").count(), 5, "{log}");
    for c in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{2028}', '\r', '\u{0}'] {
        assert!(!file.contains(c) && !log.contains(c), "{c:?}");
    }
}
