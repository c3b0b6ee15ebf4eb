//! The console on a login under attack, all of it in memory: `cargo run --example console`, then open the address
//! that it prints.
//!
//! Three instances share a store, as servers of a fleet share Redis. People log in, mistype and call the help desk;
//! guessers, credential stuffing, a botnet and a slow password spray are among them. An hour has passed at the start,
//! so that there is something to see.
//!
//! Environment: `LISTEN` (default `127.0.0.1:3001`); `CONSOLE_TOKEN`, the secret to log in with, chosen at random
//! unless set.

#![allow(unreachable_pub)] // nothing of an example is reached from outside

mod attackers;
mod clock;
mod people;
mod random;
mod traffic;

use std::{env, error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, response::Redirect, routing::get};
use tokio::time::{MissedTickBehavior, interval};
use tower_login_rate_limit::{
    Caller, Limit, LoginLimiter, Part, Period, Policy, Rule, Token,
    access::{AccessRule, Field},
    admin::{Author, Subject},
    console::Console,
    event::{Event, Feed, Observe, UserDisplay, UserHasher},
    insight::Insight,
    live::Canary,
    server::{Role, Server, Tokens},
    store::{MemoryStore, Store},
};

use clock::DelayedClock;
use traffic::{Action, Traffic};

/// How much has happened at the start.
const HISTORY: Duration = Duration::from_secs(60 * 60);
const INSTANCES: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = Arc::new(DelayedClock::by(HISTORY));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock)));
    let feed = Feed::new(100_000);
    let mut fleet = Vec::new();
    for _ in 0..INSTANCES {
        fleet.push(instance(&store, &feed, &clock).await?);
    }
    set_rules(&fleet[0]).await?;

    let mut traffic = Traffic::new();
    for _ in 0..HISTORY.as_secs() {
        for action in traffic.next_second() {
            play(&fleet, action).await;
        }
        // Events get the time of the clock when they are observed.
        for limiter in &fleet {
            limiter.observed().await;
        }
        clock.catch_up(Duration::from_secs(1));
    }

    let secret = env::var("CONSOLE_TOKEN").unwrap_or_else(|_| Token::new().to_string());
    let tokens = Tokens::new().with_token("you", &secret, [Role::Decide, Role::Operate])?;
    let api = Server::new(fleet[0].clone(), tokens)?
        .with_feed(feed)
        .router();
    let app = Router::new()
        .route("/", get(async || Redirect::to("/console/")))
        .nest_service("/console", Console::for_router(api.clone()).router())
        .merge(api);
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3001".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Open http://{}/console/", listener.local_addr()?);
    println!("and log in with the token {secret}");
    tokio::spawn(keep_on(fleet, traffic));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

/// One server of the fleet.
async fn instance(
    store: &Arc<dyn Store>,
    feed: &Feed,
    clock: &Arc<DelayedClock>,
) -> Result<LoginLimiter, Box<dyn Error>> {
    let insight = Insight::new(UserHasher::new("the same on each server")?);
    let (feed, clock) = (feed.clone(), Arc::clone(clock));
    let limiter = LoginLimiter::new(policy()?, Arc::clone(store))
        // Nobody here is real. Elsewhere, names in clear are a choice to be made with care.
        .with_user_display(UserDisplay::Clear)
        .with_insight(insight)
        .with_observer(move |event: &Event| {
            let at = event.at.saturating_sub(clock.delay());
            feed.observe(&event.clone().with_time(at));
        });
    Ok(limiter.live().await?)
}

/// The strict policy, and a rule on trial.
fn policy() -> Result<Policy, Box<dyn Error>> {
    let burst = Limit::attempts(8).within(Period::minutes(10));
    let burst = Rule::new("burst", [Part::Address], burst)?.with_shadow(true);
    Ok(Policy::strict().with_rule(burst))
}

async fn set_rules(limiter: &LoginLimiter) -> Result<(), Box<dyn Error>> {
    let admin = limiter.admin()?;
    let probe = AccessRule::allow("uptime-probe", Field::Network, "192.0.2.250")?;
    let author = Author::new("maria", "checks the login every ten seconds")?;
    admin.add_access_rule(probe, &author).await?;
    let scanner = AccessRule::deny("scanner", Field::UserAgent, "sqlmap")?;
    let author = Author::new("jonas", "no customer logs in with it")?;
    admin.add_access_rule(scanner, &author).await?;
    let hoster = AccessRule::deny("bulletproof-hoster", Field::Network, "192.0.2.128/26")?;
    let author = Author::new("maria", "nothing but guesses since spring")?;
    admin.add_access_rule(hoster, &author).await?;

    let current = admin.ruleset().await?;
    let pairs = Limit::attempts(4).within(Period::days(1));
    let canary = Canary::new(policy()?.with_user_address_limit(pairs)?, 10.0)?;
    let author = Author::new("jonas", "are four tries enough?")?;
    let ruleset = current.ruleset.clone().with_canary(canary);
    admin
        .replace_ruleset(current.version, ruleset, &author)
        .await?;
    // The others put it in force when it is announced.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// From now on as it happens, a tenth of a second's actions at a time.
async fn keep_on(fleet: Vec<LoginLimiter>, mut traffic: Traffic) {
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut actions = traffic.next_second();
        for tick in 0..10 {
            ticks.tick().await;
            let left = actions.len() * (9 - tick) / 10;
            for action in actions.drain(left..).collect::<Vec<_>>() {
                play(&fleet, action).await;
            }
        }
    }
}

async fn play(fleet: &[LoginLimiter], action: Action) {
    match action {
        Action::Login(login) => {
            // A load balancer sends each client to one of the servers.
            let limiter = &fleet[login.user.len() % fleet.len()];
            let caller = Caller::new(login.address)
                .with_user(&login.user)
                .with_second_factor(login.second_factor);
            if let Ok(attempt) = limiter.reserve(caller).await {
                // A store in memory does not fail.
                let _ = attempt.settle(login.outcome).await;
            }
        }
        Action::HelpDesk { address, user } => {
            if let (Ok(admin), Ok(author)) = (
                fleet[0].admin(),
                Author::new("help desk", "called and was identified"),
            ) {
                let _ = admin.unblock(Subject::pair(address, user), &author).await;
            }
        }
    }
}
