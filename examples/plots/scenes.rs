//! What is drawn.

use std::time::Duration;

use tower_login_rate_limit::{Limit, Period, PolicyError};

use crate::{
    chart::{Panel, Plot, Scale},
    history::{DAY, HOUR, History, MINUTE, SECOND, guesses, play, right, used, wait, wrong},
};

pub(crate) fn all() -> Result<Vec<Plot>, PolicyError> {
    Ok(vec![
        sliding_window()?,
        backoff()?,
        token_bucket()?,
        sliding_counter()?,
        growing_blocks()?,
    ])
}

fn sliding_window() -> Result<Plot, PolicyError> {
    let five_an_hour = || Limit::attempts(5).within(Period::hours(1));
    let until = 4 * HOUR;
    let attacker = || guesses(7 * MINUTE, until - MINUTE, 7 * MINUTE);

    let pure = five_an_hour().without_block().build()?;
    let pure = play(&pure, attacker(), until, used);
    let limit = five_an_hour().blocked_for(Period::hours(2)).build()?;
    let blocked = play(&limit, attacker(), until, used);
    let half_minutes = |n: u64| n * 30 * SECOND;
    let person = [
        wrong(half_minutes(2)),
        wrong(half_minutes(3)),
        right(half_minutes(4)),
        right(half_minutes(12)),
        wrong(half_minutes(19)),
        wrong(half_minutes(20)),
        wrong(half_minutes(21)),
        right(half_minutes(23)),
    ];
    let person = play(&limit, person, 15 * MINUTE, used);

    let scale = Scale::Attempts(5);
    let captions = [&pure, &blocked].map(|history| history.failed());
    Ok(Plot {
        file: "sliding-window.svg",
        title: "Sliding window",
        subtitle: "5 failures within 1 hour. Somebody guesses every 7 minutes; a person mistypes and logs in.",
        measured: "failures that count",
        panels: vec![
            Panel::new(
                &format!("Without a block: {} guesses in 4 hours", captions[0]),
                ".without_block()",
                pure,
                scale,
            )
            .with_ticks(HOUR),
            Panel::new(
                &format!("With a block: {} guesses in 4 hours", captions[1]),
                ".blocked_for(Period::hours(2))",
                blocked,
                scale,
            )
            .with_ticks(HOUR),
            Panel::new(
                "A person: each login takes back the failures before it",
                ".blocked_for(Period::hours(2))",
                person,
                scale,
            )
            .with_ticks(3 * MINUTE),
        ],
    })
}

fn backoff() -> Result<Plot, PolicyError> {
    let limit = Limit::default_backoff().build()?;
    let attacker = |until| guesses(SECOND, until, SECOND);
    let (at_first, later) = (62 * SECOND, 21 * MINUTE);
    let first = play(&limit, attacker(at_first - 1), at_first, wait);
    let later = play(&limit, attacker(later - 1), later, wait);
    let two_are_free = Limit::backoff([0, 0, 5, 30, 300].map(Duration::from_secs)).build()?;
    let person = [
        wrong(3 * SECOND),
        wrong(9 * SECOND),
        wrong(15 * SECOND),
        wrong(18 * SECOND),
        right(24 * SECOND),
        wrong(42 * SECOND),
        right(48 * SECOND),
    ];
    let person = play(&two_are_free, person, 60 * SECOND, wait);

    let captions = [&first, &later].map(|history| history.failed());
    Ok(Plot {
        file: "backoff.svg",
        title: "Back-off",
        subtitle: "Each failure makes the next wait longer. Somebody guesses every second; a person mistypes and logs in.",
        measured: "time left to wait",
        panels: vec![
            Panel::new(
                &format!("The first minute: {} guesses", captions[0]),
                "Limit::default_backoff()",
                first,
                Scale::Wait(30),
            )
            .with_ticks(10 * SECOND),
            Panel::new(
                &format!(
                    "The first 20 minutes: {} guesses, then one in 5 minutes",
                    captions[1]
                ),
                "Limit::default_backoff()",
                later,
                Scale::Wait(300),
            )
            .with_ticks(2 * MINUTE),
            Panel::new(
                "A person: two errors are free, a login begins anew",
                "Limit::backoff([0, 0, 5, 30, 300]…)",
                person,
                Scale::Wait(5),
            )
            .with_ticks(10 * SECOND),
        ],
    })
}

fn token_bucket() -> Result<Plot, PolicyError> {
    let six = || {
        let six = Limit::attempts(6).within(Period::minutes(6));
        six.as_token_bucket()
    };
    let until = 20 * MINUTE;
    let attacker = || {
        let first = guesses(25 * SECOND, 8 * MINUTE, 25 * SECOND);
        first.chain(guesses(15 * MINUTE, until - SECOND, 25 * SECOND))
    };
    let plain = play(&six().build()?, attacker(), until, used);
    let blocked = six().blocked_for(Period::minutes(5)).build()?;
    let blocked = play(&blocked, attacker(), until, used);

    let scale = Scale::Attempts(6);
    let captions = [&plain, &blocked].map(|history| history.failed());
    Ok(Plot {
        file: "token-bucket.svg",
        title: "Token bucket",
        subtitle: "6 tokens, one comes back each minute. Somebody guesses every 25 seconds, rests, and comes back.",
        measured: "tokens that are missing",
        panels: vec![
            Panel::new(
                &format!(
                    "Without a block: a burst, then one a minute; {} guesses",
                    captions[0]
                ),
                ".as_token_bucket()",
                plain,
                scale,
            )
            .with_ticks(2 * MINUTE),
            Panel::new(
                &format!("With a block: {} guesses", captions[1]),
                ".as_token_bucket().blocked_for(Period::minutes(5))",
                blocked,
                scale,
            )
            .with_ticks(2 * MINUTE),
        ],
    })
}

fn sliding_counter() -> Result<Plot, PolicyError> {
    let window = 10 * MINUTE;
    let limit = Limit::attempts(12).within(Period::minutes(10));
    let limit = limit.as_sliding_counter().build()?;

    let until = 40 * MINUTE;
    let steady = guesses(30 * SECOND, 26 * MINUTE, 30 * SECOND);
    let steady = play(&limit, steady, until, used);
    let burst = guesses(6 * MINUTE, 23 * MINUTE, 20 * SECOND);
    let burst = play(&limit, burst, until, used);

    let scale = Scale::Attempts(12);
    let panel = |caption: &str, history: History| Panel {
        windows: Some(window),
        exact: Some(history.exact_count(window)),
        ..Panel::new(caption, ".as_sliding_counter()", history, scale).with_ticks(5 * MINUTE)
    };
    Ok(Plot {
        file: "sliding-counter.svg",
        title: "Sliding-window counter",
        subtitle: "12 failures within 10 minutes, estimated from two numbers. Dotted lines are where windows begin.",
        measured: "estimate",
        panels: vec![
            panel(
                "Steady guesses: the estimate is too high at first, then close",
                steady,
            ),
            panel(
                "A burst before a window ends: it is too low for a while",
                burst,
            ),
        ],
    })
}

fn growing_blocks() -> Result<Plot, PolicyError> {
    let words = || {
        Limit::attempts(5)
            .within(Period::hours(24))
            .blocked_for(Period::hours(24))
            .then_for(Period::days(7))
            .then_for(Period::Forever)
    };
    let until = 12 * DAY;
    let attacker = guesses(3 * HOUR, until - HOUR, 3 * HOUR);
    let attacker = play(&words().build()?, attacker, until, used);
    let remembered = words().again_within(Period::days(7)).build()?;
    let five = |from| guesses(from, from + 8 * MINUTE, 2 * MINUTE);
    let again = |from| guesses(from + 9 * HOUR, from + 20 * HOUR, 5 * HOUR);
    let day = |n| five(n * DAY).chain(again(n * DAY));
    let seldom = play(&remembered, day(1).chain(day(10)), until, used);

    let scale = Scale::Attempts(5);
    let guessed = attacker.failed();
    Ok(Plot {
        file: "growing-blocks.svg",
        title: "Blocks that grow",
        subtitle: "5 failures within 24 hours block for 24 hours, the next time for 7 days, then for ever.",
        measured: "failures that count",
        panels: vec![
            Panel::new(
                &format!("A guess every 3 hours: {guessed} in all"),
                ".blocked_for(…).then_for(…).then_for(Period::Forever)",
                attacker,
                scale,
            )
            .with_ticks(DAY),
            Panel::new(
                "Quiet for 8 days, then again: the first length",
                ".again_within(Period::days(7))",
                seldom,
                scale,
            )
            .with_ticks(DAY),
        ],
    })
}
