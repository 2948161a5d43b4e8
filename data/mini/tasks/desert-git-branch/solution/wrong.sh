#!/bin/bash
cd /app
git branch desert
