#!/usr/bin/env bash
# Every test: tests.sh BIN. Those of Slurm wait more than they work, so they run beside the others.
set -uo pipefail
log=$(mktemp)
"$1/pytest" tests/launch/slurm >"$log" 2>&1 &
slurm=$!
trap 'kill "$slurm" 2>/dev/null; rm -f "$log"' EXIT
"$1/pytest" --ignore=tests/launch/slurm
code=$?
wait "$slurm" || code=$?
cat "$log"
exit "$code"
