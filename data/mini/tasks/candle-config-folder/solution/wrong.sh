#!/bin/bash
cd /app
mv candle.conf coral.txt
