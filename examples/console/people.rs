//! Honest people: at home, in an office behind one address, and on the phone with the help desk.

use std::net::{IpAddr, Ipv4Addr};

use tower_login_rate_limit::Outcome;

use super::{
    random::Random,
    traffic::{Action, Login},
};

const FIRST: [&str; 20] = [
    "ada", "alan", "anna", "bruno", "carla", "dmitri", "elena", "farid", "greta", "hugo", "ines",
    "jan", "karin", "luca", "mei", "nora", "omar", "paula", "rosa", "tom",
];
const LAST: [&str; 15] = [
    "adler", "berg", "costa", "diaz", "ferrari", "haas", "ito", "jansen", "keller", "lind",
    "moreau", "novak", "okafor", "silva", "wagner",
];
pub const PEOPLE: usize = FIRST.len() * LAST.len();
/// The first of them work in one office.
const OFFICE: usize = 40;
const OFFICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
/// Who logs in with a code too: every third.
const WITH_CODE: usize = 3;
/// How often somebody forgets a password for good, in seconds.
const FORGETS_EVERY: usize = 300;

pub fn name(person: usize) -> String {
    let (first, last) = (
        FIRST[person % FIRST.len()],
        LAST[person / FIRST.len() % LAST.len()],
    );
    format!("{first}.{last}")
}

fn address(person: usize) -> IpAddr {
    if person < OFFICE {
        return OFFICE_ADDRESS;
    }
    Ipv4Addr::new(198, 18, (person / 200) as u8, (person % 200) as u8 + 1).into()
}

fn attempt(person: usize, outcome: Outcome, second_factor: bool) -> Action {
    Action::Login(Login {
        address: address(person),
        user: name(person),
        outcome,
        second_factor,
    })
}

/// What people do in this second.
pub fn act(second: usize, random: &mut Random, actions: &mut Vec<Action>) {
    for _ in 0..random.below(7) {
        // More of them are at work than at home.
        let office = random.percent(40);
        let person = random.below(if office { OFFICE } else { PEOPLE });
        log_in(person, random, actions);
    }
    forget(second, actions);
}

/// A login, with the typos that people make.
fn log_in(person: usize, random: &mut Random, actions: &mut Vec<Action>) {
    let typos = match random.below(100) {
        0..80 => 0,
        80..94 => 1,
        94..99 => 2,
        _ => 3,
    };
    actions.extend((0..typos).map(|_| attempt(person, Outcome::Failure, false)));
    if !person.is_multiple_of(WITH_CODE) {
        return actions.push(attempt(person, Outcome::Success, false));
    }
    actions.push(attempt(person, Outcome::MfaPending, false));
    if random.percent(8) {
        actions.push(attempt(person, Outcome::Failure, true));
    }
    actions.push(attempt(person, Outcome::Success, true));
}

/// Somebody tries until blocked, calls the help desk, and logs in.
fn forget(second: usize, actions: &mut Vec<Action>) {
    let person = OFFICE + second / FORGETS_EVERY * 7 % (PEOPLE - OFFICE);
    match second % FORGETS_EVERY {
        at @ 20..80 if at % 10 == 0 => actions.push(attempt(person, Outcome::Failure, false)),
        // Not everybody calls.
        200 if !person.is_multiple_of(4) => actions.push(Action::HelpDesk {
            address: address(person),
            user: name(person),
        }),
        220 => actions.push(attempt(person, Outcome::Success, false)),
        _ => {}
    }
}
