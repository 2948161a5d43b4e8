#!/bin/bash
cd /app
mv honey.txt pocket
