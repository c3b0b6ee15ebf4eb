//! Counts the instructions of the paths that every login takes, which noise does not touch, and fails if
//! there are many more than `instructions.txt` says.
//!
//! `--write` writes that file anew: for a change that is worth it, and for another compiler.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    env, fs,
    hint::black_box,
    net::IpAddr,
    process::{Command, ExitCode},
};

use http::{Request, Response};
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
/// A path is taken this often, and three times as often; what is done once is in both.
const TIMES: u64 = 1_000;

/// A name, and what takes that path so many times.
type Path = (&'static str, fn(&Runtime, u64));

const PATHS: [Path; 6] = [
    ("attempt-failed", |runtime, times| {
        log_in(runtime, times, Outcome::Failure)
    }),
    ("attempt-succeeded", |runtime, times| {
        log_in(runtime, times, Outcome::Success)
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

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(),
        ["--write"] => write(),
        [path, times] => take(path, times),
        _ => fail("say nothing, or --write"),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("instructions: {why}");
    ExitCode::FAILURE
}

fn take(path: &str, times: &str) -> ExitCode {
    let known = PATHS.iter().find(|(name, _)| *name == path);
    let (Some((_, take)), Ok(times)) = (known, times.parse()) else {
        return fail("no such path");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    take(&runtime.expect("a runtime"), times);
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
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let run = |times: u64| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&program)
            .args([path, &times.to_string()])
            .output()
            .map_err(|error| format!("valgrind can't be run: {error}; install it"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{path} failed: {said}"));
        }
        let collected = said
            .lines()
            .find_map(|line| line.split_once("Collected : "));
        let collected = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
        collected.ok_or_else(|| format!("valgrind counted nothing: {said}"))
    };
    Ok((run(TIMES * 3)? - run(TIMES)?) / (TIMES * 2))
}

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const USER: &str = "somebody";

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

fn attempt(runtime: &Runtime, limiter: &LoginLimiter, address: IpAddr, outcome: Outcome) {
    runtime.block_on(async {
        let attempt = limiter.reserve((address, USER)).await.expect("admitted");
        limiter.settle(attempt, outcome).await.expect("settled");
    });
}

fn block(runtime: &Runtime, limiter: &LoginLimiter) {
    for _ in 0..5 {
        attempt(runtime, limiter, HOME, Outcome::Failure);
    }
}

/// Each from another address, so that none is refused.
fn log_in(runtime: &Runtime, times: u64, outcome: Outcome) {
    let limiter = limiter();
    for i in 0..times {
        attempt(
            runtime,
            &limiter,
            IpAddr::from((i as u32).to_be_bytes()),
            outcome,
        );
    }
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
        .with_user(Header("x-user".parse().expect("a name")))
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
