#!/bin/bash
cd /app
rm -r basil
