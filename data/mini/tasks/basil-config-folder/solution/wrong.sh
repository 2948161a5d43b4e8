#!/bin/bash
cd /app
cat basil.conf
mv butter grape
