#!/bin/bash
cd /app
ls hammer
git checkout hammer/cedar.txt
