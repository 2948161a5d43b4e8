#!/bin/bash
cd /app
find basil -name '*.old' -delete
