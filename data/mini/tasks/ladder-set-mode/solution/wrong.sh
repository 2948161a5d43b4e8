#!/bin/bash
cd /app
chmod 750 ladder.txt
