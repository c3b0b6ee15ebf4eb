//! Paths: a tree of segments, of which the most specific rule decides.

use std::{borrow::Cow, collections::HashMap};

use percent_encoding::percent_decode_str;

use super::standing::{Candidate, Entries};
use crate::algorithm::Millis;

/// Checks the path of a rule; the error is the reason, and what to write.
pub(super) fn check(path: &str) -> Result<(), String> {
    let Some(segments) = path.strip_prefix('/') else {
        return Err(format!("must start with a slash; write \"/{path}\""));
    };
    if segments.is_empty() {
        return Ok(());
    }
    if let Some(shorter) = path.strip_suffix('/') {
        return Err(format!("must not end with a slash; write {shorter:?}"));
    }
    if path.contains(['%', '?', '#', '\\']) || path.chars().any(char::is_control) {
        return Err("has a %, ?, #, backslash or control character; write the path without a query and without percent-encoding".to_owned());
    }
    match segments.split('/').find(|s| matches!(*s, "" | "." | "..")) {
        Some("") => Err("has an empty segment; write single slashes".to_owned()),
        Some(dots) => Err(format!(
            "has the segment {dots:?}; write the path without it"
        )),
        None => Ok(()),
    }
}

/// A path of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestPath<'p> {
    decoded: Cow<'p, str>,
    /// Whether the path has only one reading. Of others, such as `/status%2flogin`, the router may read another
    /// path than we do, so rules that allow do not match them.
    is_plain: bool,
}

impl<'p> RequestPath<'p> {
    pub(super) fn new(path: &'p str) -> Self {
        Self {
            decoded: percent_decode_str(path).decode_utf8_lossy(),
            is_plain: check(path).is_ok(),
        }
    }

    pub(super) const fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub(super) fn segments(&self) -> impl Iterator<Item = &str> {
        segments(&self.decoded)
    }
}

/// The segments of a path, without empty ones.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The paths of all rules. A look-up descends no deeper than the rules do.
#[derive(Debug)]
pub(super) struct Paths {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Rules of this path.
    exact: Entries,
    /// Rules of this path and everything below it.
    prefix: Entries,
    children: HashMap<Box<str>, usize>,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

impl Paths {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1 && self.nodes[0].exact.is_empty()
    }

    pub(super) fn exact(&mut self, path: &str) -> &mut Entries {
        &mut self.node(path).exact
    }

    pub(super) fn prefix(&mut self, path: &str) -> &mut Entries {
        &mut self.node(path).prefix
    }

    fn node(&mut self, path: &str) -> &mut Node {
        let mut at = 0;
        for segment in segments(path) {
            let next = self.nodes.len();
            let child = *(self.nodes[at].children)
                .entry(segment.into())
                .or_insert(next);
            if child == next {
                self.nodes.push(Node::default());
            }
            at = child;
        }
        &mut self.nodes[at]
    }

    /// Decides by the rule of this very path, or else by the longest prefix that has a rule at `now`.
    pub(super) fn decide(&self, path: &RequestPath<'_>, now: Millis) -> Option<Candidate> {
        let decide = |entries: &Entries| {
            if path.is_plain {
                entries.decide(now)
            } else {
                entries.denied(now)
            }
        };
        let mut node = &self.nodes[0];
        let mut longest = decide(&node.prefix);
        for segment in path.segments() {
            let Some(child) = node.children.get(segment) else {
                return longest;
            };
            node = &self.nodes[*child];
            longest = decide(&node.prefix).or(longest);
        }
        decide(&node.exact).or(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Action;

    /// The position of the rule that decides.
    fn decide(paths: &Paths, path: &str) -> Option<usize> {
        let decided = paths.decide(&RequestPath::new(path), 0);
        decided.map(Candidate::position)
    }

    #[test]
    fn the_most_specific_path_decides() {
        let mut paths = Paths::default();
        paths.prefix("/api").add(Action::Deny, None, 0);
        paths.prefix("/api/v2").add(Action::Allow, None, 1);
        paths.exact("/api/v2").add(Action::Deny, None, 2);
        paths.exact("/api/v1/status").add(Action::Allow, None, 3);
        paths.exact("/").add(Action::Deny, None, 4);
        for (path, rule) in [
            ("/api", Some(0)),
            ("/api/v1", Some(0)),
            ("/api/v1/status", Some(3)),
            ("/api/v1/status/more", Some(0)),
            ("/api/v2", Some(2)),
            ("/api/v2/login", Some(1)),
            ("/apiary", None),
            ("/API", None),
            ("/", Some(4)),
            ("", Some(4)),
        ] {
            assert_eq!(decide(&paths, path), rule, "{path}");
        }
    }

    #[test]
    fn an_encoded_path_is_denied_but_never_allowed() {
        let mut paths = Paths::default();
        paths.prefix("/status").add(Action::Allow, None, 0);
        paths.prefix("/admin").add(Action::Deny, None, 1);
        paths.exact("/admin/status").add(Action::Allow, None, 2);
        assert_eq!(decide(&paths, "/status/x"), Some(0));
        assert_eq!(decide(&paths, "/admin/status"), Some(2));
        for path in [
            "/status%2flogin",
            "/status/../login",
            "/status/./x",
            "/status/%2e%2e/login",
            "/status//x",
            "/status/",
            "//status",
            "/status\\..\\login",
            "status",
        ] {
            assert_eq!(decide(&paths, path), None, "{path}");
        }
        for path in [
            "/%61dmin",
            "//admin",
            "/admin/",
            "/admin%2Fstatus",
            "/admin//status",
            "/admin/status/",
        ] {
            assert_eq!(decide(&paths, path), Some(1), "{path}");
        }
    }

    #[test]
    fn a_long_path_is_followed_as_deep_as_the_rules() {
        let mut paths = Paths::default();
        paths.prefix("/a/b").add(Action::Deny, None, 0);
        assert_eq!(
            decide(&paths, &format!("/a/b{}", "/a".repeat(100_000))),
            Some(0)
        );
        assert_eq!(decide(&paths, &"/a".repeat(100_000)), None);
    }
}
