#!/bin/bash
cd /app
rm carbon.md5
