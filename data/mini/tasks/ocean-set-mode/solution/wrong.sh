#!/bin/bash
cd /app
ls -l ocean.txt
