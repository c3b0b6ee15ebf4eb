#!/usr/bin/env bash
# Runs every check and every test. Finds what the tests need, installs it where it may, or says in one
# sentence what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
give_up() { printf 'tests/run.sh: %s\n' "$*" >&2; exit 1; }

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
find_browser() { command -v "${CHROMEDRIVER:-chromedriver}" >/dev/null; }
if ! find_browser; then
  install chromium-driver || install chromium-chromedriver || install chromedriver || true
  find_browser || give_up "chromedriver is missing and could not be installed: install Chromium and its driver, and run this again"
fi
say "browser: $("${CHROMEDRIVER:-chromedriver}" --version)"

# And one check counts instructions.
if ! command -v valgrind >/dev/null; then
  install valgrind || true
  command -v valgrind >/dev/null || give_up "valgrind is missing and could not be installed: install it, and run this again"
fi

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
