#!/bin/bash
cd /app
rm -r pepper
