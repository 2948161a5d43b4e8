#!/bin/bash
cd /app
export MODE=orchid
