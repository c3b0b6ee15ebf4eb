//! Rules for people.

use tower_login_rate_limit::Policy;

use crate::output::{Cell, Style, Table};

/// The rules of a policy.
pub(super) fn table(policy: &Policy) -> Table {
    let mut table = Table::new(["RULE", "STATE", ""]);
    for rule in policy.rules() {
        let (state, style) = match (rule.is_enabled(), rule.is_shadow()) {
            (false, _) => ("off", Style::Dim),
            (true, true) => ("shadow", Style::Yellow),
            (true, false) => ("on", Style::Green),
        };
        table.row([
            Cell::new(rule.name()),
            Cell::new(state).styled(style),
            Cell::new(rule.to_words()),
        ]);
    }
    table
}
