#!/bin/bash
cd /app
echo silver >> ladder.txt
