//! The engine without tower: guess at a login on the command line.
//!
//! `cargo run --example limiter` keeps its counters in memory; with `REDIS_URL` set, as in
//! `REDIS_URL=redis://127.0.0.1:6379`, in Redis, where several of these share them.

use std::{
    io::{BufRead, Write, stdin, stdout},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, ReserveError,
    store::{MemoryStore, RedisStore, Store},
};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = LoginLimiter::new(Policy::default(), store().await?);
    println!("Log in as \"user\" with the password \"correct-horse\", or don't. Ctrl-D ends.");
    let mut lines = stdin().lock().lines();
    loop {
        let Some(user) = ask("user", &mut lines)? else {
            return Ok(());
        };

        // Before the password is looked at, the attempt takes its place.
        let attempt = match limiter.reserve((ADDRESS, &*user)).await {
            Ok(attempt) => attempt,
            Err(ReserveError::Refused(refusal)) => {
                println!("Refused by the rule {:?}: {refusal}.", refusal.rule());
                continue;
            }
            // An error does not admit the attempt.
            Err(error) => {
                println!("Can't decide: {error}.");
                continue;
            }
        };

        // An attempt that is left like this is a failure when its lease ends.
        let Some(password) = ask("password", &mut lines)? else {
            return Ok(());
        };
        let outcome = match (&*user, &*password) {
            ("user", "correct-horse") => Outcome::Success,
            ("user", _) => Outcome::Failure,
            _ => Outcome::UnknownUser,
        };
        attempt.settle(outcome).await?;
        match outcome {
            Outcome::Success => println!("Welcome."),
            _ => println!("Wrong user or password."),
        }
        if let Some(left) = limiter.check((ADDRESS, &*user)).await?.remaining() {
            println!("Attempts left: {left}.");
        }
    }
}

/// In memory, or in Redis if there is a URL.
async fn store() -> Result<Arc<dyn Store>, Box<dyn std::error::Error>> {
    match std::env::var("REDIS_URL") {
        Ok(url) => Ok(Arc::new(RedisStore::connect(url).await?)),
        Err(_) => Ok(Arc::new(MemoryStore::new())),
    }
}

fn ask(
    what: &str,
    lines: &mut impl Iterator<Item = std::io::Result<String>>,
) -> std::io::Result<Option<String>> {
    print!("{what}: ");
    stdout().flush()?;
    lines.next().transpose()
}
