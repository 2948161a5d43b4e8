#!/bin/bash
cd /app
bash flint.sh
touch forest
bash flint.sh
