#!/bin/bash
cd /app
git checkout -b honey
