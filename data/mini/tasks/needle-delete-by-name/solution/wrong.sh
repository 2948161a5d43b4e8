#!/bin/bash
cd /app
rm needle/*.bak
