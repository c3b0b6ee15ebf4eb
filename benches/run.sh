#!/usr/bin/env bash
# Measures everything, or the sections that are named: memory, layer, redis, server, attack, cost,
# scripts, growth, access, replay, observers, blocks, live, console.
# Finds what that needs, installs it where it may, or says in one sentence what is missing. All of the load
# stays on this machine; it takes about a quarter of an hour, and means little if anything else is going on here.
set -euo pipefail
cd "$(dirname "$0")"

source ../tests/tools.sh

command -v cargo >/dev/null || give_up "cargo is missing: install Rust, see rustup.rs"
either() { command -v "$1" || command -v "$2" || echo "$1"; }
export REDIS_SERVER=${REDIS_SERVER:-$(either redis-server valkey-server)}
export REDIS_BENCHMARK=${REDIS_BENCHMARK:-$(either redis-benchmark valkey-benchmark)}
need "$REDIS_SERVER" redis-server redis
need "$REDIS_BENCHMARK" redis-tools redis
need wrk wrk
need valgrind valgrind
need node nodejs node
need npm npm
need "${CHROMIUM:-chromium}" chromium
say "redis: $("$REDIS_SERVER" --version)"
say "node: $(node --version)"

say "rate-limiter-flexible"
(cd peers/rate-limiter-flexible && npm ci --no-audit --no-fund)

say "measuring"
# Allocations and instructions are counted by programs of their own, which the first one starts.
cargo build --release --locked --bins
# With features that would be in the other figures too, if they were built together.
cargo build --release --locked --features operated --bin operated --target-dir target/operated
cargo build --release --locked --features watched --bin watched --target-dir target/operated
exec cargo run --release --locked --bin benches -- "$@"
