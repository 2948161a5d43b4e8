#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
[ ! -e diamond/rocket.pid ]
[ -d diamond ]
if grep -qsa 'rocket[.]sh' /proc/[0-9]*/cmdline; then exit 1; fi
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
