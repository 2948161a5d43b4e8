#!/bin/bash
cd /app
ls prism
cp mirror/pocket.txt prism/pocket.txt
