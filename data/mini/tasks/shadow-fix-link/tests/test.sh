#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
[ -L shadow.txt ]
[ shadow.txt -ef tiger/oasis.txt ]
[ "$(cat tiger/oasis.txt)" = jungle ]
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
