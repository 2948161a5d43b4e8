#!/bin/bash
cd /app
export THEME=satin
