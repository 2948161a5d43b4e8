#!/bin/bash
cd /app
ls
tar -czf cliff.tar.gz nickel
rm -r nickel
