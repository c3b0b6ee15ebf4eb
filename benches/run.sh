#!/usr/bin/env bash
# Measures everything, or the sections that are named: memory, layer, redis, server, attack, cost, growth.
# Finds what that needs, installs it where it may, or says in one sentence what is missing. All of the load
# stays on this machine; it takes some twelve minutes, and means little if anything else is going on here.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }
give_up() { printf 'benches/run.sh: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 1
  fi
}

# install WHAT: by the system's package manager, if there is one and it may be used.
install() {
  say "installing $1"
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"
  elif command -v dnf >/dev/null; then as_root dnf install -y -q "$1"
  elif command -v apk >/dev/null; then as_root apk add --quiet "$1"
  elif command -v brew >/dev/null; then brew install --quiet "$1"
  else return 1
  fi
}

# need PROGRAM PACKAGE…: the program is there, or one of the packages brings it.
need() {
  local program=$1 package
  shift
  for package in "$@"; do
    if command -v "$program" >/dev/null; then break; fi
    install "$package" || true
  done
  command -v "$program" >/dev/null || give_up "$program is missing and could not be installed: install it and run this again"
}

command -v cargo >/dev/null || give_up "cargo is missing: install Rust, see rustup.rs"
either() { command -v "$1" || command -v "$2" || echo "$1"; }
export REDIS_SERVER=${REDIS_SERVER:-$(either redis-server valkey-server)}
export REDIS_BENCHMARK=${REDIS_BENCHMARK:-$(either redis-benchmark valkey-benchmark)}
need "$REDIS_SERVER" redis-server redis
need "$REDIS_BENCHMARK" redis-tools redis
need wrk wrk
need node nodejs node
need npm npm
say "redis: $("$REDIS_SERVER" --version)"
say "node: $(node --version)"

say "rate-limiter-flexible"
(cd peers/rate-limiter-flexible && npm ci --no-audit --no-fund)

say "measuring"
exec cargo run --release --locked --bin benches -- "$@"
