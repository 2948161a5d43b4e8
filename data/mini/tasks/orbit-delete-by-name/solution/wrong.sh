#!/bin/bash
cd /app
rm -r orbit
