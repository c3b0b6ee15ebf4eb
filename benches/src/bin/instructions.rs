//! Counts the instructions of the paths that every login takes, which noise does not touch, and fails if
//! there are many more than `instructions.txt` says.
//!
//! `--write` writes that file anew: for a change that is worth it, and for another compiler. `--count` with
//! names of paths prints a line `name count` for each. With the feature `peers` there are more paths, of the
//! layers that are compared; they are not in the file.

use std::{
    collections::BTreeMap, convert::Infallible, env, fs, hint::black_box, net::IpAddr,
    process::ExitCode,
};

use benches::callgrind::{self, TIMES};
#[cfg(feature = "peers")]
use benches::services::{BLOCKED, HOT};
use http::{Method, Request, Response};
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Outcome, Policy,
    classify::ByStatus,
    extract::{Header, PeerAddressExtension},
    store::MemoryStore,
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");
/// What a count may be above that in the file. Compilers and C libraries differ by less.
const MOST: f64 = 1.10;

/// A name, and what takes that path so many times.
type Path = (&'static str, fn(&Runtime, u64));

const PATHS: [Path; 7] = [
    ("attempt-failed", |runtime, times| {
        log_in(runtime, times, ipv4, Outcome::Failure)
    }),
    ("attempt-failed-ipv6", |runtime, times| {
        log_in(runtime, times, ipv6, Outcome::Failure)
    }),
    ("attempt-succeeded", |runtime, times| {
        log_in(runtime, times, ipv4, Outcome::Success)
    }),
    ("attempt-refused", refused),
    ("request-without-layer", |runtime, times| {
        requests(runtime, times, service_fn(nothing))
    }),
    ("request-passed", |runtime, times| {
        requests(runtime, times, layer(limiter()).layer(service_fn(nothing)));
    }),
    ("request-refused", |runtime, times| {
        let limiter = limiter();
        block(runtime, &limiter);
        requests(runtime, times, layer(limiter).layer(service_fn(nothing)));
    }),
];

/// The layers that are compared, each around the same service.
#[cfg(feature = "peers")]
const PEERS: [Path; 6] = [
    ("login-without-layer", |runtime, times| {
        peers::logins(runtime, times, HOT, service_fn(peers::nothing));
    }),
    ("login-passed", |runtime, times| {
        let service = peers::ours(runtime).layer(service_fn(peers::nothing));
        peers::logins(runtime, times, HOT, service);
    }),
    ("login-passed-governor", |runtime, times| {
        let service = peers::by_address().layer(service_fn(peers::nothing));
        peers::logins(runtime, times, HOT, service);
    }),
    ("login-passed-two-governors", |runtime, times| {
        let by_user = peers::by_user().layer(service_fn(peers::nothing));
        peers::logins(runtime, times, HOT, peers::by_address().layer(by_user));
    }),
    ("login-refused", |runtime, times| {
        let service = peers::ours(runtime).layer(service_fn(peers::nothing));
        peers::logins(runtime, times, BLOCKED, service);
    }),
    ("login-refused-governor", |runtime, times| {
        let service = peers::used_up(runtime).layer(service_fn(peers::nothing));
        peers::logins(runtime, times, BLOCKED, service);
    }),
];
#[cfg(not(feature = "peers"))]
const PEERS: [Path; 0] = [];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(),
        ["--write"] => write(),
        ["--count", ref paths @ ..] => print(paths),
        [path, times] => take(path, times),
        _ => fail("the arguments are none, --write, or --count and names of paths"),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("instructions: {why}");
    ExitCode::FAILURE
}

fn take(path: &str, times: &str) -> ExitCode {
    let mut paths = PATHS.iter().chain(&PEERS);
    let known = paths.find(|(name, _)| *name == path);
    let (Some((_, take)), Ok(times)) = (known, times.parse()) else {
        return fail("no such path");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    take(&runtime.expect("a runtime"), times);
    ExitCode::SUCCESS
}

fn print(paths: &[&str]) -> ExitCode {
    for path in paths {
        match count(path) {
            Ok(count) => println!("{path} {count}"),
            Err(why) => return fail(&why),
        }
    }
    ExitCode::SUCCESS
}

fn write() -> ExitCode {
    let mut file = String::new();
    for (name, _) in PATHS {
        match count(name) {
            Ok(count) => file += &format!("{name} {count}\n"),
            Err(why) => return fail(&why),
        }
    }
    match fs::write(FILE, &file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{FILE} can't be written: {error}")),
    }
}

fn check() -> ExitCode {
    let file = match fs::read_to_string(FILE) {
        Ok(file) => file,
        Err(error) => return fail(&format!("{FILE} can't be read: {error}")),
    };
    let known = file.lines().filter_map(|line| line.split_once(' '));
    let known: BTreeMap<_, _> = known.collect();
    let mut code = ExitCode::SUCCESS;
    for (name, _) in PATHS {
        let count = match count(name) {
            Ok(count) => count,
            Err(why) => return fail(&why),
        };
        let Some(before) = known.get(name).and_then(|count| count.parse::<f64>().ok()) else {
            return fail(&format!("{name} is not in {FILE}: run this with --write"));
        };
        let ratio = count as f64 / before;
        println!("{name}: {count} instructions, {ratio:.2} of {before}");
        if ratio < 1.0 / MOST {
            code = fail(&format!(
                "{name} got better: run this with --write, so that it stays so"
            ));
        }
        if ratio > MOST {
            code = fail(&format!(
                "{name} takes {count} instructions, more than {MOST} times the {before} of {FILE}. \
                 If that is worth it, run this with --write"
            ));
        }
    }
    code
}

/// Instructions each time that this path is taken.
fn count(path: &str) -> Result<u64, String> {
    let is_peer = PEERS.iter().any(|(name, _)| *name == path);
    callgrind::count(path, is_peer.then_some("*instructions*peers*counted*"))
}

#[cfg(feature = "peers")]
mod peers {
    use std::{convert::Infallible, hint::black_box, net::IpAddr};

    use axum::body::Body;
    use benches::services::{Governor, USER, UserKeyExtractor, request, roomy};
    pub use benches::services::{nothing, ours, used_up};
    use http::{Request, Response};
    use tokio::runtime::Runtime;
    use tower::{Service, ServiceExt};
    use tower_governor::key_extractor::PeerIpKeyExtractor;

    pub fn by_address() -> Governor<PeerIpKeyExtractor> {
        roomy(PeerIpKeyExtractor)
    }

    pub fn by_user() -> Governor<UserKeyExtractor> {
        roomy(UserKeyExtractor)
    }

    pub fn logins<S, B>(runtime: &Runtime, times: u64, address: IpAddr, mut service: S)
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    {
        counted(&mut || {
            for _ in 0..times {
                let request = request(address, USER);
                runtime.block_on(async {
                    let Ok(service) = service.ready().await;
                    let Ok(response) = service.call(request).await;
                    assert_eq!(response.status().is_success(), address == super::HOT);
                    black_box(response);
                });
            }
        });
    }

    /// Valgrind counts in here only: governor calibrates a clock before, which takes some time and not some
    /// number of instructions.
    #[inline(never)]
    fn counted(work: &mut dyn FnMut()) {
        work();
        // Not a tail call, which would not return here.
        black_box(());
    }
}

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const USER: &str = "somebody";

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

fn attempt(runtime: &Runtime, limiter: &LoginLimiter, address: IpAddr, outcome: Outcome) {
    runtime.block_on(async {
        let attempt = limiter.reserve((address, USER)).await.expect("admitted");
        attempt.settle(outcome).await.expect("settled");
    });
}

fn block(runtime: &Runtime, limiter: &LoginLimiter) {
    for _ in 0..5 {
        attempt(runtime, limiter, HOME, Outcome::Failure);
    }
}

/// From [`TIMES`] addresses in turn, so that none is refused. What makes their counters grow is thus done
/// once and not counted: how often a table grows depends on secrets that are drawn for each process.
fn log_in(runtime: &Runtime, times: u64, address: fn(u64) -> IpAddr, outcome: Outcome) {
    let limiter = limiter();
    for i in 0..times {
        attempt(runtime, &limiter, address(i % TIMES), outcome);
    }
}

fn ipv4(i: u64) -> IpAddr {
    IpAddr::from((i as u32).to_be_bytes())
}

/// Each in a network of 48 bits of its own.
fn ipv6(i: u64) -> IpAddr {
    IpAddr::from((0x2a00 << 112 | u128::from(i) << 80).to_be_bytes())
}

fn refused(runtime: &Runtime, times: u64) {
    let limiter = limiter();
    block(runtime, &limiter);
    for _ in 0..times {
        let refused = runtime.block_on(limiter.reserve((HOME, USER)));
        assert!(black_box(refused).is_err());
    }
}

fn layer(limiter: LoginLimiter) -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(limiter)
        .with_user(Header::new("x-user".parse().expect("a name")))
        .with_classifier(ByStatus)
}

async fn nothing(request: Request<String>) -> Result<Response<String>, Infallible> {
    black_box(request);
    Ok(Response::new(String::new()))
}

fn requests<S>(runtime: &Runtime, times: u64, mut service: S)
where
    S: Service<Request<String>, Error = Infallible>,
{
    for _ in 0..times {
        let mut request = Request::new(String::new());
        *request.method_mut() = Method::POST;
        let user = http::HeaderValue::from_static(USER);
        request.headers_mut().insert("x-user", user);
        let peer = PeerAddressExtension((HOME, 5000).into());
        request.extensions_mut().insert(peer);
        runtime.block_on(async {
            let Ok(service) = service.ready().await;
            let Ok(response) = service.call(request).await;
            black_box(response);
        });
    }
}
