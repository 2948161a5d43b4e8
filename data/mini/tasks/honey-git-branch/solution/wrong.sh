#!/bin/bash
cd /app
git branch honey
