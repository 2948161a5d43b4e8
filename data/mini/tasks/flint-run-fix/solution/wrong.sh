#!/bin/bash
cd /app
bash flint.sh
mkdir bottle
bash flint.sh
