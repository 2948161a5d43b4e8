#!/bin/bash
cd /app
cat candle.conf
ls banana
mv banana/bamboo.txt banana/coral.txt
