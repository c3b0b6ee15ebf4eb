//! Contenders that take turns: whatever disturbs the machine in one round disturbs all of them.

/// How often each contender has its turn.
pub const ROUNDS: usize = 9;

/// What each contender measured in each round, whatever that is: the time of an operation, say.
pub struct Rounds {
    measured: Vec<(&'static str, Vec<f64>)>,
}

/// One contender against another: the median of what it was in each round, the least and the most.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// A contender's name, and a turn of it.
pub type Contender<'a> = (&'static str, Box<dyn FnMut() -> f64 + 'a>);

impl Rounds {
    /// Lets the contenders take turns. The first round warms up and does not count; each round begins with
    /// another contender, so that none always comes after the same one.
    pub fn take_turns(mut contenders: Vec<Contender<'_>>) -> Self {
        let names = contenders.iter().map(|(name, _)| (*name, Vec::new()));
        let mut measured: Vec<_> = names.collect();
        for round in 0..=ROUNDS {
            for i in 0..contenders.len() {
                let i = (i + round) % contenders.len();
                let turn = contenders[i].1();
                if round > 0 {
                    measured[i].1.push(turn);
                }
            }
        }
        Self { measured }
    }

    /// What one measured, divided by what another did.
    pub fn ratio(&self, one: &str, other: &str) -> Ratio {
        let pairs = self.of(one).iter().zip(self.of(other));
        Ratio::of(pairs.map(|(one, other)| one / other).collect())
    }

    /// What one added to a third, divided by what another did.
    pub fn added(&self, one: &str, other: &str, to: &str) -> Ratio {
        let base = self.of(to).iter();
        let rounds = self.of(one).iter().zip(self.of(other)).zip(base);
        let ratio = |((one, other), base): ((&f64, &f64), &f64)| (one - base) / (other - base);
        Ratio::of(rounds.map(ratio).collect())
    }

    pub fn median(&self, name: &str) -> f64 {
        Ratio::of(self.of(name).to_vec()).median
    }

    fn of(&self, name: &str) -> &[f64] {
        let found = self.measured.iter().find(|(known, _)| *known == name);
        &found.unwrap_or_else(|| panic!("there is no {name}")).1
    }
}

impl Ratio {
    pub fn of(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        Self {
            median: ratios[ratios.len() / 2],
            low: ratios[0],
            high: ratios[ratios.len() - 1],
        }
    }
}
