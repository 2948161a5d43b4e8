#!/usr/bin/env bash
# Every test: tests.sh BIN, in two parts side by side: those of $waiting wait more than they work.
set -uo pipefail
waiting=(tests/launch tests/envs tests/integration/test_chaos.py)
log=$(mktemp)
# A shell has its background jobs ignore an interrupt, which tests send to what they start.
env --default-signal=INT "$1/pytest" "${waiting[@]}" >"$log" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; rm -f "$log"' EXIT
"$1/pytest" "${waiting[@]/#/--ignore=}"
code=$?
wait "$beside" || code=$?
cat "$log"
exit "$code"
