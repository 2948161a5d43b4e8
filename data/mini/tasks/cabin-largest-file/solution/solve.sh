#!/bin/bash
cd /app
ls -S cabin
rm cabin/piano.txt
