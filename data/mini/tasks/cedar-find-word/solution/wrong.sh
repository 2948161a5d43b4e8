#!/bin/bash
cd /app
mv saddle/cedar.txt saddle/otter.txt
