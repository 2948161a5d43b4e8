#!/bin/bash
cd /app
git commit -qm magnet
