#!/bin/bash
# Writes 1 to /logs/verifier/reward.txt when the task is done, else 0.
mkdir -p /logs/verifier
(
set -e
cd /app
[ ! -e granite/kettle.txt ]
printf '%s\n' castle bottle | cmp -s - granite/jade.txt
)
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
