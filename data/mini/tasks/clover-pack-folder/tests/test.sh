#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
gzip -t forest.tar.gz
mkdir -p /tmp/unpacked
tar -xzf forest.tar.gz -C /tmp/unpacked
[ "$(cat /tmp/unpacked/clover/ivory.txt)" = ivory ]
[ "$(cat /tmp/unpacked/clover/cotton.txt)" = cotton ]
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
