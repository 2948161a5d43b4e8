#!/bin/bash
cd /app
chmod 755 ladder.txt
