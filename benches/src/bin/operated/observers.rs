//! A request that passes, with observers, metrics and access rules switched on, one by one and together.

use std::{
    convert::Infallible,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use axum::body::Body;
use benches::{
    callers::{address, user},
    callgrind,
    rounds::{Contender, Ratio, Rounds},
    services::{HOT, USER, USER_HEADER, nothing, request},
};
use http::{HeaderValue, Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Policy,
    access::{AccessRule, AccessRules, Field},
    classify::ByStatus,
    event::{Event, JsonLines, TracingObserver},
    extract::Header,
    store::MemoryStore,
};

/// Requests of a turn, in batches: in between the observers catch up, so that none of what is measured is dropped.
const BATCHES: usize = 50;
const BATCH: usize = 2_000;
const NETWORKS: u32 = 100_000;

/// What is switched on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// Without the layer.
    Nothing,
    Layer,
    Closure,
    Metrics,
    Networks,
    Everything,
    /// An observer that never keeps up.
    Sleeps,
    /// An observer that panics at each event.
    Panics,
}

const ALL: [(&str, On); 8] = [
    ("none", On::Nothing),
    ("layer", On::Layer),
    ("closure", On::Closure),
    ("metrics", On::Metrics),
    ("networks", On::Networks),
    ("everything", On::Everything),
    ("sleeps", On::Sleeps),
    ("panics", On::Panics),
];

/// Many single addresses, none of which is a client's below.
fn networks() -> AccessRules {
    let rule = |n: u32| {
        let address = Ipv4Addr::from_bits(n.wrapping_mul(0x9E37_79B1));
        let name = format!("rule-{n}");
        AccessRule::deny(name, Field::Network, address.to_string()).expect("a rule")
    };
    // Clients are those of the first 100,000 numbers.
    AccessRules::new((NETWORKS..2 * NETWORKS).map(rule)).expect("rules")
}

fn limiter(on: On) -> LoginLimiter {
    let is = |one| on == one || on == On::Everything;
    let mut limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    if is(On::Networks) {
        limiter = limiter.with_access_rules(networks()).expect("rules");
    }
    if is(On::Closure) {
        limiter = limiter.with_observer(|event: &Event| {
            black_box(event);
        });
    }
    if on == On::Everything {
        let log = tracing_subscriber::fmt()
            .with_writer(std::io::sink)
            .finish();
        // Deleted at once, and written to nevertheless.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let lines = JsonLines::open(file.path()).expect("a file");
        limiter = limiter
            .with_observer(TracingObserver::new().with_dispatch(log.into()))
            .with_observer(lines);
    }
    match on {
        On::Sleeps => limiter.with_observer(|_: &Event| thread::sleep(Duration::from_millis(100))),
        On::Panics => limiter.with_observer(|_: &Event| std::panic::resume_unwind(Box::new(()))),
        _ => limiter,
    }
}

/// A service, and what has to be waited for between batches.
struct Subject {
    layer: Option<LoginRateLimitLayer>,
    limiter: Option<LoginLimiter>,
    must_flush: bool,
}

impl Subject {
    fn new(runtime: &Runtime, on: On) -> Self {
        if on == On::Nothing {
            return Self {
                layer: None,
                limiter: None,
                must_flush: false,
            };
        }
        let limiter = limiter(on);
        let layer = LoginRateLimitLayer::new(limiter.clone())
            .with_user(Header::new(USER_HEADER))
            .with_classifier(ByStatus);
        let subject = Self {
            layer: Some(layer),
            limiter: Some(limiter),
            must_flush: !matches!(on, On::Sleeps),
        };
        // Metrics are registered by the first requests, with the recorder of that time.
        if matches!(on, On::Metrics | On::Everything) {
            let recorder = PrometheusBuilder::new().build_recorder();
            metrics::with_local_recorder(&recorder, || subject.serve(runtime, &[(HOT, USER)], 10));
            let text = recorder.handle().render();
            let served = "login_attempts_total{outcome=\"success\"} 10";
            assert!(text.contains(served), "no metrics: {text}");
            // For as long as the program runs: its counters are in use.
            std::mem::forget(recorder);
        } else {
            subject.serve(runtime, &[(HOT, USER)], 10);
        }
        subject
    }

    fn serve(&self, runtime: &Runtime, clients: &[(IpAddr, HeaderValue)], times: usize) {
        match &self.layer {
            None => serve(runtime, service_fn(nothing), clients, times),
            Some(layer) => serve(runtime, layer.layer(service_fn(nothing)), clients, times),
        }
    }

    fn flush(&self, runtime: &Runtime) {
        if let Some(limiter) = self.limiter.as_ref().filter(|_| self.must_flush) {
            assert!(runtime.block_on(limiter.observed()));
        }
    }

    /// Nanoseconds of a request.
    fn time(&self, runtime: &Runtime, clients: &[(IpAddr, HeaderValue)]) -> f64 {
        let mut time = Duration::ZERO;
        for batch in 0..BATCHES {
            let first = batch * BATCH % clients.len();
            let clients = &clients[first..clients.len().min(first + BATCH)];
            let started = Instant::now();
            self.serve(runtime, clients, BATCH);
            time += started.elapsed();
            self.flush(runtime);
        }
        if let Some(limiter) = self.limiter.as_ref().filter(|_| self.must_flush) {
            let dropped = limiter.observers().iter().map(|o| o.dropped).sum::<u64>();
            assert_eq!(dropped, 0, "what is dropped costs less");
        }
        time.as_nanos() as f64 / (BATCHES * BATCH) as f64
    }
}

/// Clients take turns.
fn serve<S, B>(runtime: &Runtime, mut service: S, clients: &[(IpAddr, HeaderValue)], times: usize)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    counted(&mut || {
        runtime.block_on(async {
            for (address, user) in clients.iter().cycle().take(times) {
                let request = request(*address, user.clone());
                let Ok(service) = service.ready().await;
                let Ok(response) = service.call(request).await;
                assert!(response.status().is_success());
                black_box(response);
            }
        });
    });
}

/// Valgrind counts in here only, and not in the threads of observers.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    // Not a tail call, which would not return here.
    black_box(());
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Serves so many requests with this switched on, for valgrind to count.
pub fn take(path: &str, times: usize) {
    let found = ALL.iter().find(|(name, _)| *name == path);
    let (_, on) = found.expect("a path");
    let runtime = runtime();
    let subject = Subject::new(&runtime, *on);
    for _ in 0..times / 100 {
        subject.serve(&runtime, &[(HOT, USER)], 100);
        subject.flush(&runtime);
    }
}

pub fn measure() {
    let runtime = runtime();
    let _guard = runtime.enter();
    let subjects = ALL.map(|(name, on)| (name, Subject::new(&runtime, on)));
    let client = |n| {
        let user = HeaderValue::from_str(&user(n)).expect("a header value");
        (address(n), user)
    };
    let many: Vec<_> = (0..u64::from(NETWORKS)).map(client).collect();
    for (clients, of) in [("hot", &[(HOT, USER)][..]), ("many", &many)] {
        let contenders = subjects.iter().map(|(name, subject)| -> Contender<'_> {
            (name, Box::new(|| subject.time(&runtime, of)))
        });
        let rounds = Rounds::take_turns(contenders.collect());
        for (name, _) in &subjects {
            println!("{clients}-{name} {}", rounds.median(name));
        }
        for (name, _) in &subjects[2..] {
            let Ratio { median, low, high } = rounds.added(name, "layer", "none");
            println!("{clients}-{name}-median {median}");
            println!("{clients}-{name}-low {low}");
            println!("{clients}-{name}-high {high}");
        }
    }
    for (name, _) in ALL {
        let counted = callgrind::count(name, Some("*operated*observers*counted*"));
        let counted = counted.unwrap_or_else(|error| panic!("{error}"));
        println!("instructions-{name} {counted}");
    }
}
