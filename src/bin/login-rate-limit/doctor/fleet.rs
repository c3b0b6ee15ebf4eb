//! The fleet: rules, instances, the list of blocks, the stream.

use std::collections::BTreeSet;

use tower_login_rate_limit::{live::Instance, store::RedisStore};

use super::{finding::Findings, prefix, secret};
use crate::{output::counted, session::Session, store::StoreArgs};

/// Over how many keys a stream is divided in a cluster.
const STREAMS: u8 = 4;

pub(super) async fn look(
    session: &Session,
    args: &StoreArgs,
    redis: &RedisStore,
    findings: &mut Findings,
) {
    let newest = match session.admin.ruleset().await {
        Ok(version) if version.version == 0 => {
            findings.ok(
                "rules",
                "none in the store: each instance decides by what it was started with",
            );
            0
        }
        Ok(version) => {
            let author = &version.author;
            findings.ok("rules", format!("version {} by {author}", version.version));
            version.version
        }
        Err(error) => {
            findings.problem(
                "rules",
                error.to_string(),
                "update this program to the version of the app",
            );
            return;
        }
    };
    let instances = session.admin.instances().await.unwrap_or_default();
    let blocks = session.admin.block_counts().await.unwrap_or_default();
    let blocks: u64 = blocks.iter().map(|count| count.blocks).sum();
    let events = stream_length(redis, args).await;
    if newest == 0 && instances.is_empty() && blocks == 0 && events == 0 {
        prefix::look(redis, args, findings).await;
        return;
    }
    look_at_instances(&instances, newest, findings);
    findings.ok(
        "blocks",
        format!("{} listed", counted(blocks as usize, "block")),
    );
    match events {
        0 => findings.ok("stream", format!("no events at {}", args.stream_key())),
        n => findings.ok(
            "stream",
            format!("{} at {}", counted(n as usize, "event"), args.stream_key()),
        ),
    }
    secret::look(session, args, findings).await;
}

fn look_at_instances(instances: &[Instance], newest: u64, findings: &mut Findings) {
    if instances.is_empty() {
        findings.warning(
            "instances",
            "no instance of the app reports itself",
            "make the limiter live (`LoginLimiter::live`), or changes of rules reach none; is the app running?",
        );
        return;
    }
    let versions: BTreeSet<_> = instances
        .iter()
        .map(|instance| &*instance.software)
        .collect();
    let count = counted(instances.len(), "instance");
    let listed = versions.iter().copied().collect::<Vec<_>>().join(", ");
    if versions.len() > 1 {
        let message = format!("{count} with different versions of the crate: {listed}");
        findings.warning(
            "instances",
            message,
            "deploy one version: rules are read by the oldest of them",
        );
    } else {
        findings.ok(
            "instances",
            format!("{count}, version {listed} of the crate"),
        );
    }
    for instance in instances {
        let id = &instance.id;
        match &instance.problem {
            Some(problem) => {
                let message = format!(
                    "{id} enforces version {} of the rules: {problem}",
                    instance.version
                );
                findings.problem("instances", message, "update it, or roll the rules back");
            }
            None if instance.version < newest => {
                let message = format!(
                    "{id} enforces version {} of the rules, and {newest} is the newest",
                    instance.version
                );
                findings.warning(
                    "instances",
                    message,
                    "run this again in some seconds; if it stays, look at its log",
                );
            }
            None => {}
        }
    }
}

async fn stream_length(redis: &RedisStore, args: &StoreArgs) -> u64 {
    let key = args.stream_key();
    let divided = (0..STREAMS).map(|n| format!("{key}:{{{n}}}"));
    let mut length = 0;
    for key in [key.clone()].into_iter().chain(divided) {
        let mut command = redis::cmd("XLEN");
        command.arg(key);
        let reply = redis.query(command).await.ok();
        let one = reply.and_then(|reply| redis::from_redis_value::<u64>(reply).ok());
        length += one.unwrap_or(0);
    }
    length
}
