#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
[ "$(tr -d ' \n' < turtle.json)" = '{"workers":85,"name":"topaz","limit":59}' ]
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
