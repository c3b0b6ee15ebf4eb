#!/usr/bin/env bash
# Compares the running HTTP API with its OpenAPI document, by a tool that is not ours: no 5xx, whatever is sent, and no
# answer that the document does not describe. Schemathesis is installed below target/.
#
# EXAMPLES=400 tests/schemathesis.sh sends more than 10,000 requests; at the end it prints how many. SEED=n chooses others.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/tools.sh

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$target/schemathesis
if ! [ -x "$venv/bin/schemathesis" ]; then
  python3 -m venv "$venv" && "$venv/bin/pip" install --quiet 'schemathesis==4.*' ||
    give_up "schemathesis could not be installed: it is a Python package"
fi

cargo build --quiet --example api
log=$(mktemp)
report=$(mktemp)
export DECIDE_TOKEN=decide-0123456789abcdef0123456789abcdef OPERATE_TOKEN=operate-0123456789abcdef0123456789abcdef
LISTEN=127.0.0.1:0 "$target/debug/examples/api" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log" "$report"' EXIT
for _ in $(seq 100); do
  url=$(sed -n 's/^listening on //p' "$log")
  [ -n "$url" ] && break
  sleep 0.1
done
[ -n "$url" ] || give_up "the API does not listen: $(cat "$log")"

check() {
  local token=$1
  shift
  "$venv/bin/schemathesis" --config-file tests/schemathesis.toml run "$url/v1/openapi.json" \
    --header "Authorization: Bearer $token" --max-examples "${EXAMPLES:-50}" --seed "${SEED:-1}" --no-color \
    --request-timeout 10 "$@" | tee -a "$report"
}
say "schemathesis: decisions"
check "$DECIDE_TOKEN" --exclude-path-regex '^/v1/(admin|ext-authz)/'
# Envoy sends any method, of which one is described.
say "schemathesis: decisions for Envoy"
check "$DECIDE_TOKEN" --include-path-regex '^/v1/ext-authz/' --exclude-checks unsupported_method
# The stream of events has no end.
say "schemathesis: operations"
check "$OPERATE_TOKEN" --include-path-regex '^/v1/admin/' --exclude-path /v1/admin/events/live

kill -0 "$server" || give_up "the API has ended: $(cat "$log")"
if grep -q panicked "$log"; then give_up "the API has panicked: $(cat "$log")"; fi
say "$(awk '/^ *[0-9]+ generated/ { n += $1 } END { print n }' "$report") requests were sent, and each was answered as described"
