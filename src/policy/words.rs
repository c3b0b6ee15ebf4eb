//! What a rule does, in a sentence.

use std::fmt::Write;

use super::{Part, Period, Rule};
use crate::algorithm::Algorithm;

impl Rule {
    /// What the rule does, in words.
    ///
    /// ```
    /// use tower_login_rate_limit::{Policy, Rule};
    ///
    /// let policy = Policy::default();
    /// let words = policy.rule(Rule::USER_ADDRESS).map(Rule::to_words);
    /// assert_eq!(words.as_deref(), Some("each user at each address: 5 failures within 1 day, then blocked for 1 day"));
    /// ```
    #[must_use]
    pub fn to_words(&self) -> String {
        let mut words = self.who();
        let limit = self.limit();
        let (max, window) = (limit.max_attempts(), limit.window());
        // Writing to a string can't fail.
        let _ = match limit.algorithm() {
            Algorithm::Backoff => {
                let waits: Vec<_> = limit
                    .waits()
                    .map(|wait| Period::Of(wait).to_string())
                    .collect();
                write!(words, ": after each failure a wait of {}", waits.join(", "))
            }
            Algorithm::TokenBucket => write!(words, ": {max} failures, refilled within {window}"),
            Algorithm::SlidingWindow | Algorithm::SlidingCounter => match window {
                Period::Forever => write!(words, ": {max} failures"),
                window => write!(words, ": {max} failures within {window}"),
            },
        };
        let blocks: Vec<_> = limit.blocks().map(|block| block.to_string()).collect();
        let _ = match &*blocks {
            [] => Ok(()),
            [block] if block == "forever" => write!(words, ", then blocked until it is lifted"),
            [block] => write!(words, ", then blocked for {block}"),
            [..] => write!(words, ", then blocked for {}, growing", blocks.join(", ")),
        };
        if self.exempts_known_addresses() {
            words += "; not counted where the user has logged in before";
        }
        if !self.is_enabled() {
            words += "; not enabled";
        } else if self.is_shadow() {
            words += "; in shadow, refuses nothing";
        }
        words
    }

    /// What attempts are counted by.
    fn who(&self) -> String {
        let mut parts: Vec<_> = self.parts().iter().collect();
        parts.sort_by_key(|part| match part {
            Part::User => 0,
            Part::Address | Part::Network(_) => 1,
            Part::Value(_) => 2,
        });
        let named = parts.into_iter().map(|part| match part {
            Part::User => "each user".to_owned(),
            Part::Address => "each address".to_owned(),
            Part::Network(bits) => format!("each IPv6 network of {bits} bits"),
            Part::Value(name) => format!("each {name}"),
        });
        let mut who = named.collect::<Vec<_>>().join(" at ");
        if self.is_of_second_factor() {
            who += ", at the second factor";
        }
        who
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    #[test]
    fn each_rule_of_each_policy_has_words() {
        for policy in [
            Policy::default(),
            Policy::strict(),
            Policy::nist(),
            Policy::owasp(),
        ] {
            for rule in policy.rules() {
                let words = rule.to_words();
                assert!(
                    words.starts_with("each ") && words.contains(": "),
                    "{words}"
                );
            }
        }
        let strict = Policy::strict();
        let account = strict.rule("account").unwrap().to_words();
        assert!(account.starts_with("each user: "), "{account}");
        assert!(account.contains("has logged in before"), "{account}");
    }
}
