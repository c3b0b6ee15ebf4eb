//! What a counter makes of attempts that come at given times.

use tower_login_rate_limit::{
    __private::{Counter, Spelling},
    Limit, Period, Token,
    algorithm::{Millis, Standing, State},
};

pub(crate) const SECOND: Millis = 1000;
pub(crate) const MINUTE: Millis = 60 * SECOND;
pub(crate) const HOUR: Millis = 60 * MINUTE;
pub(crate) const DAY: Millis = 24 * HOUR;

const LEASE: Millis = 30 * SECOND;
/// How often the counter is looked at between attempts, in the whole time.
const LOOKS: Millis = 2400;

/// Somebody comes with a password.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Millis,
    pub(crate) knows_it: bool,
}

/// Guesses from one time to another, one in each step.
pub(crate) fn guesses(from: Millis, to: Millis, step: u64) -> impl Iterator<Item = Arrival> {
    let times = (0..).map(move |i| from + i * step);
    times.take_while(move |at| *at <= to).map(wrong)
}

pub(crate) const fn wrong(at: Millis) -> Arrival {
    Arrival {
        at,
        knows_it: false,
    }
}

pub(crate) const fn right(at: Millis) -> Arrival {
    Arrival { at, knows_it: true }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Failed,
    LoggedIn,
    Refused,
}

/// A stretch of time in which nothing is admitted.
pub(crate) struct Blocked {
    pub(crate) from: Millis,
    pub(crate) lasts: Period,
}

/// What happened.
pub(crate) struct History {
    pub(crate) until: Millis,
    pub(crate) attempts: Vec<(Millis, Seen)>,
    pub(crate) blocked: Vec<Blocked>,
    /// What was measured of the counter, over time.
    pub(crate) line: Vec<(Millis, f64)>,
}

impl History {
    /// How many passwords were tried in vain.
    pub(crate) fn failed(&self) -> usize {
        let failed = self.attempts.iter();
        failed.filter(|(_, seen)| *seen == Seen::Failed).count()
    }

    /// How many failures really lie within a window's length of each moment.
    pub(crate) fn exact_count(&self, window: Millis) -> Vec<(Millis, f64)> {
        let mut line = Vec::new();
        for look in (0..=self.until).step_by((self.until / LOOKS) as usize) {
            let recent = |at: Millis| at <= look && look < at + window;
            let failed = self.attempts.iter();
            let failed = failed.filter(|(at, seen)| *seen == Seen::Failed && recent(*at));
            line.push((look, failed.count() as f64));
        }
        simplified(&line)
    }
}

/// What counts, in attempts.
pub(crate) fn used(standing: &Standing) -> f64 {
    standing.rate()
}

/// How long is left to wait, in seconds.
pub(crate) fn wait(standing: &Standing) -> f64 {
    match standing.state {
        State::Blocked {
            lifts: Period::Of(left),
        } => left.as_secs_f64(),
        _ => 0.0,
    }
}

/// Runs a counter: each attempt reserves, and says at once how it went.
pub(crate) fn play(
    limit: &Limit,
    arrivals: impl IntoIterator<Item = Arrival>,
    until: Millis,
    measure: fn(&Standing) -> f64,
) -> History {
    let mut counter = Counter::default();
    let mut history = History {
        until,
        attempts: Vec::new(),
        blocked: Vec::new(),
        line: Vec::new(),
    };
    let step = until / LOOKS;
    let mut next_look = 0;
    for (Arrival { at, knows_it }, number) in arrivals.into_iter().zip(0_u64..) {
        for look in (next_look..at).step_by(step as usize) {
            let standing = counter.standing(limit, look);
            history.line.push((look, measure(&standing)));
            next_look = look + step;
        }
        let before = counter.standing(limit, at);
        history.line.push((at, measure(&before)));
        if before.refuses() {
            history.attempts.push((at, Seen::Refused));
            continue;
        }

        let token = fixed_token(number);
        counter.admit(limit, token, Spelling::NORMAL, LEASE, at);
        if knows_it {
            counter.clean_up(&[token], None, at);
            history.attempts.push((at, Seen::LoggedIn));
        } else {
            counter.fail(limit, token, Spelling::default(), at, at);
            history.attempts.push((at, Seen::Failed));
        }
        let after = counter.standing(limit, at);
        history.line.push((at, measure(&after)));
        if let State::Blocked { lifts: lasts } = after.state {
            history.blocked.push(Blocked { from: at, lasts });
        }
    }
    for look in (next_look..=until).step_by(step as usize) {
        let standing = counter.standing(limit, look);
        history.line.push((look, measure(&standing)));
    }
    history.line = simplified(&history.line);
    history
}

/// Tokens are random in real life; a drawing is the same each time.
fn fixed_token(number: u64) -> Token {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    Token::from_bytes(bytes)
}

/// The same line with fewer points: those from which a straight one is nowhere far.
fn simplified(line: &[(Millis, f64)]) -> Vec<(Millis, f64)> {
    let [first, between @ .., last] = line else {
        return line.to_vec();
    };
    let slope = match last.0 - first.0 {
        0 => 0.0,
        time => (last.1 - first.1) / time as f64,
    };
    let off = |(at, value): &(Millis, f64)| {
        let straight = first.1 + slope * (at - first.0) as f64;
        (value - straight).abs()
    };
    let farthest = (1..=between.len()).max_by(|i, j| off(&line[*i]).total_cmp(&off(&line[*j])));
    match farthest {
        Some(i) if off(&line[i]) > 0.01 => {
            let mut points = simplified(&line[..=i]);
            points.pop();
            points.extend(simplified(&line[i..]));
            points
        }
        _ => vec![*first, *last],
    }
}
