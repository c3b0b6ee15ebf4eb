//! The latest events: listed, exported.

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        Inner, Operator, Shared,
        decision::check_length,
        extract::Params,
        openapi::{Problems, ShareProblem},
        problem::Problem,
        schema,
        shares::{Bounds, Share},
    },
    blocking, csv, unavailable,
};
use crate::{
    Address,
    event::{Event, Feed, What},
};

/// How many events a list has at most, and an export.
const MAX_LISTED: usize = 1_000;
const MAX_EXPORTED: usize = 100_000;
/// How many searches there are at a time; others wait. And how many exports, which a slow reader holds.
pub(in super::super) const MAX_SEARCHES: usize = 2;
pub(in super::super) const MAX_EXPORTS: Bounds = Bounds { total: 16, each: 4 };
/// How many events of an export are written at a time.
const CHUNK: usize = 200;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct EventQuery {
    /// Only those of this name: `block_began`.
    #[param(max_length = 64, nullable = false)]
    event: Option<String>,
    /// Only those of this rule.
    #[param(max_length = 64, nullable = false)]
    rule: Option<String>,
    /// Only those of this address.
    #[param(schema_with = schema::ip_address)]
    address: Option<IpAddr>,
    /// Only those of this user: by name where this process knows it or can open it, otherwise as it is shown.
    #[param(max_length = 1_000, nullable = false)]
    user: Option<String>,
    /// How many at most, the newest: up to 1,000, and 100 unless set; in an export up to 100,000, and as many unless set.
    #[param(minimum = 1, maximum = 100_000, nullable = false)]
    limit: Option<usize>,
    /// `json` for a list; `jsonl` or `csv` for an export as lines.
    #[param(inline, nullable = false)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Json,
    Jsonl,
    Csv,
}

/// The latest events.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Events {
    /// The newest first.
    #[schema(value_type = Vec<schema::Event>)]
    events: Vec<Arc<Event>>,
}

/// List events
///
/// Those that this instance keeps, the newest first. In `csv`, an apostrophe stands before what a spreadsheet would take
/// for a formula, whatever its list separator is; `jsonl` has the texts as they are.
#[utoipa::path(
    get, path = "/v1/admin/events", tag = "events", operation_id = "events", params(EventQuery),
    responses(
        (status = 200, description = "The newest first", content(
            (Events = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"),
        )),
        (status = 404, description = "This instance keeps no events", body = schema::Problem, content_type = "application/problem+json"),
        Problems, ShareProblem,
    ),
)]
pub(in super::super) async fn list(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Params(query): Params<EventQuery>,
) -> Result<Response, Problem> {
    check_length("event", query.event.as_deref(), 64)?;
    check_length("rule", query.rule.as_deref(), 64)?;
    check_length("user", query.user.as_deref(), 1_000)?;
    let format = query.format.unwrap_or_default();
    let max = match format {
        Format::Json => MAX_LISTED,
        Format::Jsonl | Format::Csv => MAX_EXPORTED,
    };
    let limit = match (query.limit, format) {
        (Some(limit), _) => limit,
        (None, Format::Json) => 100,
        (None, _) => max,
    };
    if !(1..=max).contains(&limit) {
        return Err(Problem::invalid(format!("limit: 1 to {max}")));
    }
    let (feed, matcher) = (server.feed()?.clone(), Shared::clone(&server));
    let exporting = match format {
        Format::Json => None,
        Format::Jsonl | Format::Csv => {
            Some((server.exports).acquire(&operator, "exports are being written")?)
        }
    };
    let permit = Arc::clone(&server.searches).acquire_owned().await;
    let permit = permit.map_err(|_| unavailable("the server shuts down"))?;
    // There may be a million, and users to open.
    let find = move || feed.latest(limit, |event| matcher.matches(&query, event));
    let events = blocking(permit, find).await?;
    match exporting {
        None => server.answer(&Events { events }),
        Some(share) => Ok(export(server, events, format == Format::Csv, share)),
    }
}

impl Inner {
    pub(super) fn feed(&self) -> Result<&Feed, Problem> {
        (self.feed.as_ref()).ok_or_else(|| {
            Problem::not_found("this instance keeps no events: give its server a feed")
        })
    }

    fn matches(&self, query: &EventQuery, event: &Event) -> bool {
        let name = query.event.as_deref();
        let rule = query.rule.as_deref();
        name.is_none_or(|name| name == event.what.name())
            && rule.is_none_or(|rule| rule_of(&event.what) == Some(rule))
            && query.address.is_none_or(|ip| is_at(event.address, ip))
            && (query.user.as_deref()).is_none_or(|user| self.is_of(event, user))
    }

    /// Whether an event is of this user.
    fn is_of(&self, event: &Event, user: &str) -> bool {
        let Some(found) = &event.user else {
            return false;
        };
        let name = self.limiter.normalize(user);
        if let Some(identified) = found.identified() {
            return identified == name;
        }
        found.shown().is_some_and(|shown| {
            let sealer = self.users.as_ref();
            let opened = sealer.and_then(|sealer| sealer.open(&shown).ok());
            opened.map_or(shown == user, |opened| opened == name)
        })
    }

    /// An event as JSON, with its user in clear if that can be opened.
    pub(super) fn opened(&self, event: &Event) -> Value {
        self.open(event).unwrap_or_default()
    }
}

fn is_at(address: Option<Address>, ip: IpAddr) -> bool {
    address.is_some_and(|address| Address::new(ip, address.prefix()) == address)
}

/// The rule that an event is about.
pub(super) fn rule_of(what: &What) -> Option<&str> {
    match what {
        What::Refused { rule, .. }
        | What::BlockBegan { rule, .. }
        | What::BlockLifted { rule, .. }
        | What::LimitReached { rule, .. }
        | What::AccessRuleHit { rule, .. }
        | What::WrongBlock { rule, .. } => Some(rule),
        _ => None,
    }
}

/// The events as lines, written as they are read: a slow reader costs no memory but that of the events.
fn export(server: Shared, events: Vec<Arc<Event>>, is_csv: bool, share: Share) -> Response {
    let (extension, media_type) = if is_csv {
        ("csv", "text/csv; charset=utf-8")
    } else {
        ("jsonl", "application/x-ndjson")
    };
    let head = is_csv.then(|| Bytes::from_static(csv::HEAD.as_bytes()));
    let mut events = events.into_iter().peekable();
    let chunks = std::iter::from_fn(move || {
        // Held as long as the events are.
        let _share = &share;
        events.peek()?;
        let mut text = String::new();
        for event in events.by_ref().take(CHUNK) {
            if is_csv {
                csv::push(&mut text, &event, &server.opened(&event));
            } else {
                text += &server.opened(&event).to_string();
                text.push('\n');
            }
        }
        Some(Bytes::from(text))
    });
    let chunks = head.into_iter().chain(chunks).map(Ok::<_, Infallible>);
    let headers = [
        (CONTENT_TYPE, media_type.to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"login-events.{extension}\""),
        ),
    ];
    (headers, Body::from_stream(stream::iter(chunks))).into_response()
}
