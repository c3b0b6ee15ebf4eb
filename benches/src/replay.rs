//! A record of a million events under another policy.

use std::{
    hint::black_box,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy,
    clock::{Clock, ManualClock},
    event::{Event, UserDisplay},
    insight::Replay,
    store::MemoryStore,
};

use crate::{
    callers::{address, user},
    report::{Goal, Report},
};

const SECTION: &str = "Replay";
const EVENTS: usize = 1_000_000;
/// Attempts whose events are given the time of the clock together.
const BATCH: u64 = 1_000;
/// Attempts of a day: five in a second.
const APART: Duration = Duration::from_millis(200);

pub fn measure(report: &mut Report) {
    let events = record();
    let limit = Limit::attempts(3).within(Period::hours(1));
    let stricter = Policy::strict()
        .with_user_address_limit(limit)
        .expect("a limit");
    for (what, policy) in [
        ("its own policy", Policy::strict()),
        ("a stricter policy", stricter),
    ] {
        let started = Instant::now();
        let mut replay = Replay::new(policy);
        for event in &events {
            replay.record(black_box(event));
        }
        let replayed = black_box(replay.finish());
        let seconds = started.elapsed().as_secs_f64();
        assert!(replayed.attempts > EVENTS as u64 / 2, "{replayed:?}");
        report.number(
            SECTION,
            format!("a million events under {what}"),
            seconds,
            "s",
            Some(Goal::AtMost(10.0)),
        );
    }
}

/// Events of a limiter: three of four attempts are guesses, at many accounts from many addresses, and some of
/// both guess often.
fn record() -> Vec<Event> {
    let clock = Arc::new(ManualClock::at(1_790_000_000_000));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    let kept = Arc::new(Mutex::new(Vec::with_capacity(EVENTS)));
    let (keep, time) = (Arc::clone(&kept), Arc::clone(&clock));
    let limiter = LoginLimiter::new(Policy::strict(), store)
        .with_user_display(UserDisplay::Clear)
        .with_observer(move |event: &Event| {
            let event = event.clone().with_time(time.now());
            keep.lock().expect("events").push(event);
        });
    let attempts = async {
        for n in 0_u64.. {
            let (attacker, victim) = (n * 7_919 % 60_000, n * 104_729 % 200_000);
            let is_guess = n % 4 != 0;
            // Every tenth attempt is a guess of one of a hundred addresses.
            let caller = if n % 10 == 1 {
                (address(n % 1_000 / 10), user(victim))
            } else if is_guess {
                (address(attacker), user(victim % 50_000))
            } else {
                (address(1 << 30 | victim), user(victim))
            };
            if let Ok(attempt) = limiter.reserve(caller).await {
                let outcome = if is_guess {
                    Outcome::Failure
                } else {
                    Outcome::Success
                };
                attempt.settle(outcome).await.expect("settled");
            }
            clock.advance(APART);
            if n % BATCH == 0 {
                limiter.observed().await;
                if kept.lock().expect("events").len() >= EVENTS {
                    break;
                }
            }
        }
    };
    Runtime::new().expect("a runtime").block_on(attempts);
    let mut events = std::mem::take(&mut *kept.lock().expect("events"));
    events.truncate(EVENTS);
    events
}
