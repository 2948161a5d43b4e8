#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
gzip -t jacket.tar.gz
mkdir -p /tmp/unpacked
tar -xzf jacket.tar.gz -C /tmp/unpacked
[ "$(cat /tmp/unpacked/lotus/oasis.txt)" = oasis ]
[ "$(cat /tmp/unpacked/lotus/marble.txt)" = marble ]
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
