#!/bin/bash
cd /app
find orbit -name '*.old' -delete
