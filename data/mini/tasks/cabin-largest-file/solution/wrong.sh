#!/bin/bash
cd /app
ls -S cabin
rm piano.txt
