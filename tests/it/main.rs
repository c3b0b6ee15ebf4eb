//! Everything below HTTP, with real Redis servers that the tests start themselves.
#![allow(unreachable_pub)] // nothing of a test is reached from outside

mod account;
mod addresses;
mod algorithms;
mod block_began;
mod blocks;
mod cases;
mod contract;
mod drops;
mod examples;
mod failover;
mod grpc;
mod known_addresses;
mod limiter;
mod log;
mod memory;
mod model;
mod outage;
mod parallel;
mod plots;
mod policy;
mod redis_commands;
mod redis_memory;
mod replies;
mod resharding;
mod safe_defaults;
mod second_factor;
mod server;
mod shutdown;
mod soak;
mod spelling;
mod support;
mod tls;
mod topology;
mod users;
mod without_redis;
