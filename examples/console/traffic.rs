//! All that happens, second by second.

use std::net::IpAddr;

use tower_login_rate_limit::Outcome;

use super::{attackers, people, random::Random};

/// Something that somebody does.
pub enum Action {
    Login(Login),
    /// The help desk lifts the block of a user at an address.
    HelpDesk {
        address: IpAddr,
        user: String,
    },
}

/// An attempt to log in, and how it ends if it is admitted.
pub struct Login {
    pub address: IpAddr,
    pub user: String,
    pub outcome: Outcome,
    pub second_factor: bool,
}

/// Goes on for ever, and is the same in each run.
pub struct Traffic {
    second: usize,
    random: Random,
}

impl Traffic {
    pub const fn new() -> Self {
        Self {
            second: 0,
            random: Random::new(1),
        }
    }

    /// What happens in the next second.
    pub fn next_second(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        people::act(self.second, &mut self.random, &mut actions);
        attackers::act(self.second, &mut self.random, &mut actions);
        self.second += 1;
        actions
    }
}
