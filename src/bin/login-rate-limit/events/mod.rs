//! `events`: what happened, from the stream of the fleet.

mod words;

use std::{collections::VecDeque, io, io::Write, net::IpAddr};

use clap::Args;
use serde_json::Value;
use tower_login_rate_limit::{
    Address,
    algorithm::Millis,
    event::{Event, EventReader, EventUser},
    normalize,
};

use crate::{
    failure::{Exit, Failure},
    output::Output,
    period,
    session::Session,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit events
  login-rate-limit events --follow
  login-rate-limit events --since 2h --event block_began --event block_lifted
  login-rate-limit events --follow --address 192.0.2.1
  login-rate-limit events --since 24h --limit 1000000 --json > events.jsonl

The app adds events to the stream with `RedisStream`; `serve` does so by itself.";

/// How many entries are read at a time.
const BATCH: usize = 1_000;

/// Show events: attempts, refusals, blocks, outages and changes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Go on with new ones until interrupted
    #[arg(short, long)]
    follow: bool,
    /// From a time, or how long ago: 2026-11-18T07:00:00Z, 2h; 1h unless set, or now with --follow
    #[arg(long, value_name = "TIME", value_parser = crate::period::past)]
    since: Option<Millis>,
    /// The newest of them, this many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Only events of this name, such as block_began; may be repeated
    #[arg(long, value_name = "NAME")]
    event: Vec<String>,
    /// Only events about this rule
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Only events of this address
    #[arg(short, long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Only events of this user, as the stream shows users
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
}

impl Events {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        let stream = store.stream()?.open(store.url()?)?;
        // By the clock of Redis, to which events were added.
        let default = if self.follow { 0 } else { 60 * 60 * 1000 };
        let since = match self.since {
            Some(since) => since,
            None => server_time(store).await?.saturating_sub(default),
        };
        let mut reader = stream.reader().since(since);
        let mut newest = VecDeque::new();
        loop {
            let events = reader.read(BATCH).await?;
            if events.is_empty() {
                break;
            }
            newest.extend(
                events
                    .into_iter()
                    .filter(|event| self.matches(event, &session)),
            );
            let excess = newest.len().saturating_sub(self.limit);
            newest.drain(..excess);
        }
        if self.follow {
            // An interrupt is waited for before anything is shown.
            return tokio::select! {
                biased;
                interrupted = tokio::signal::ctrl_c() => Ok(interrupted.map(|()| Exit::Done)?),
                failed = self.follow(&newest, &mut reader, &session, output) => failed,
            };
        }
        let found = Exit::found(!newest.is_empty());
        for event in &newest {
            print(event, &session, output)?;
        }
        if found == Exit::Nothing && !output.json {
            let since = period::shown(since);
            return output.nothing(&format!("No such events since {since} UTC."));
        }
        skipped(&reader, output);
        Ok(found)
    }

    /// Ends with an error only.
    async fn follow(
        &self,
        newest: &VecDeque<Event>,
        reader: &mut EventReader,
        session: &Session,
        output: &Output,
    ) -> Result<Exit, Failure> {
        for event in newest {
            print(event, session, output)?;
        }
        loop {
            let events = reader.follow(BATCH).await?;
            for event in events.iter().filter(|event| self.matches(event, session)) {
                print(event, session, output)?;
            }
        }
    }

    fn matches(&self, event: &Event, session: &Session) -> bool {
        let is_name =
            self.event.is_empty() || self.event.iter().any(|name| name == event.what.name());
        is_name
            && self
                .rule
                .as_deref()
                .is_none_or(|rule| rule_of(event).as_deref() == Some(rule))
            && self.address.is_none_or(|ip| is_at(event.address, ip))
            && (self.user.as_deref()).is_none_or(|user| is_user(event.user.as_ref(), user, session))
    }
}

fn rule_of(event: &Event) -> Option<String> {
    let value = serde_json::to_value(&event.what).ok()?;
    value.get("rule").and_then(Value::as_str).map(str::to_owned)
}

fn is_at(address: Option<Address>, ip: IpAddr) -> bool {
    address.is_some_and(|address| address == Address::new(ip, address.prefix()))
}

fn is_user(user: Option<&EventUser>, name: &str, session: &Session) -> bool {
    let shown = user.and_then(EventUser::shown);
    shown.is_some_and(|shown| {
        let shown = session.opened(&shown);
        shown == name || shown == normalize(name)
    })
}

fn print(event: &Event, session: &Session, output: &Output) -> Result<(), Failure> {
    if output.json {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", event.to_json())?;
        return Ok(out.flush()?);
    }
    output.line(words::line(event, session, output))
}

fn skipped(reader: &EventReader, output: &Output) {
    if reader.unreadable() > 0 {
        let n = reader.unreadable();
        output.note(format!(
            "{n} entries of the stream are no events that this version knows"
        ));
    }
}

/// The time of the server, or of this machine if that is not permitted.
async fn server_time(store: &StoreArgs) -> Result<Millis, Failure> {
    let reply = store.open()?.query(redis::cmd("TIME")).await?;
    let time: Option<(u64, u64)> = redis::from_redis_value(reply).ok();
    let millis = time.map(|(seconds, micros)| seconds * 1000 + micros / 1000);
    Ok(millis.unwrap_or_else(period::now))
}
