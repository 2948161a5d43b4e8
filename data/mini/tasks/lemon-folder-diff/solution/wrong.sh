#!/bin/bash
cd /app
cp -r lemon mirror
