#!/bin/bash
cd /app
echo honey >> pillar.txt
