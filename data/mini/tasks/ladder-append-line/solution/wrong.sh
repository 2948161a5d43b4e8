#!/bin/bash
cd /app
touch ladder.txt
