//! Attackers, in waves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tower_login_rate_limit::Outcome;

use super::{
    people::{PEOPLE, name},
    random::Random,
    traffic::{Action, Login},
};

/// What attackers do in this second.
pub fn act(second: usize, random: &mut Random, actions: &mut Vec<Action>) {
    let mut guess = |address: IpAddr, user: String, outcome: Outcome| {
        actions.push(Action::Login(Login {
            address,
            user,
            outcome,
            second_factor: false,
        }));
    };
    // One account, from one address after the other: three minutes of every seven.
    if second % 420 < 180 {
        let address = Ipv4Addr::new(192, 0, 2, (second / 420 * 3 % 120) as u8 + 1);
        for _ in 0..2 {
            guess(address.into(), name(17), Outcome::Failure);
        }
    }
    // Credentials that leaked elsewhere, from one address. Some are right.
    if (300..560).contains(&(second % 900)) {
        let address = Ipv4Addr::new(203, 0, 113, (second / 900 * 11 % 250) as u8 + 1);
        for _ in 0..8 {
            let (user, outcome) = match random.below(100) {
                0..85 => (
                    format!("user{}@mail.test", random.below(1_000_000)),
                    Outcome::UnknownUser,
                ),
                85..99 => (name(random.below(PEOPLE)), Outcome::Failure),
                _ => (name(random.below(PEOPLE)), Outcome::Success),
            };
            guess(address.into(), user, outcome);
        }
    }
    // A botnet at one account: no address guesses often.
    if (700..1_300).contains(&(second % 1_800)) {
        for _ in 0..4 {
            let bot = random.below(20_000);
            let address = Ipv4Addr::new(100, 64 + (bot / 4_096) as u8, (bot / 16) as u8, 7);
            guess(address.into(), "admin".to_owned(), Outcome::Failure);
        }
    }
    // One password at every account, slowly, from the networks of one site.
    if second.is_multiple_of(4) {
        let network = (second / 4 % 4_096) as u16;
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0xbad, network, 0, 0, 0, 1);
        guess(address.into(), name(second / 4), Outcome::Failure);
    }
    // From a network that a rule denies, and the probe that a rule allows.
    if second.is_multiple_of(15) {
        let address = Ipv4Addr::new(192, 0, 2, 128 + (second / 15 % 60) as u8);
        guess(address.into(), "root".to_owned(), Outcome::Failure);
    }
    if second.is_multiple_of(10) {
        let probe = Ipv4Addr::new(192, 0, 2, 250);
        guess(probe.into(), "probe".to_owned(), Outcome::Success);
    }
}
