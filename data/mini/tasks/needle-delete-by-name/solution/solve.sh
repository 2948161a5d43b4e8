#!/bin/bash
cd /app
find needle -name '*.bak' -delete
