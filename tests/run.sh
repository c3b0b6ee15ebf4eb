#!/usr/bin/env bash
# Runs every check and every test. Finds what the tests need, installs it where it may, or says in one
# sentence what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/tools.sh

find_redis() {
  REDIS_SERVER=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server || true)}
  [ -n "$REDIS_SERVER" ]
}

command -v cargo >/dev/null || give_up "cargo is missing: install Rust, see rustup.rs"
cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
  give_up "rustfmt or clippy is missing: run 'rustup component add rustfmt clippy'"

if ! find_redis; then
  install redis-server || install redis || true
  find_redis || give_up "redis-server is missing and could not be installed: install Redis or Valkey, 6.2 or later, and run this again"
fi
REDIS_SERVER=$(command -v "$REDIS_SERVER") || give_up "REDIS_SERVER is set to something that can't be run"
version=$("$REDIS_SERVER" --version | sed -n 's/.*v=\([0-9]*\.[0-9]*\).*/\1/p')
[ "$(printf '%s\n' 6.2 "${version:-0}" | sort -V | head -n 1)" = 6.2 ] ||
  give_up "$REDIS_SERVER is version ${version:-unknown}: install Redis or Valkey, 6.2 or later, or set REDIS_SERVER to one"
export REDIS_SERVER
say "redis: $REDIS_SERVER $version"

# One test opens the demo's page in a browser.
need "${CHROMEDRIVER:-chromedriver}" chromium-driver chromium-chromedriver chromedriver
say "browser: $("${CHROMEDRIVER:-chromedriver}" --version)"

# And one check counts instructions.
need valgrind valgrind

say "formatting"
cargo fmt --check
cargo fmt --check --manifest-path benches/Cargo.toml

say "clippy, with no feature, each, and each two of them"
features=(memory redis tls serde axum tonic tracing)
for one in "" "${features[@]}"; do
  for other in "" "${features[@]}"; do
    if [[ "$one" > "$other" || ( -n "$one" && "$one" == "$other" ) ]]; then continue; fi
    echo "features: ${one:-none} ${other}"
    cargo clippy --quiet --locked --no-default-features --features "$one,$other" -- -D warnings
  done
done
cargo clippy --quiet --locked --all-features --all-targets -- -D warnings

say "documentation, with no feature, the default ones and all"
for features in --no-default-features "" --all-features; do
  RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps $features
done

say "tests"
cargo test --locked --all-features

if [ "$(uname -sm)" = "Linux x86_64" ]; then
  say "instructions that a login takes, against benches/instructions.txt"
  cargo run --quiet --locked --release --manifest-path benches/Cargo.toml --no-default-features --bin instructions
else
  say "instructions are NOT counted here: those of benches/instructions.txt are of Linux on x86_64"
fi
