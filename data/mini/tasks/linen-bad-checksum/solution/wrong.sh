#!/bin/bash
cd /app
rm linen.md5
