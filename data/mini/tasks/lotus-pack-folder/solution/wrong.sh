#!/bin/bash
cd /app
tar -czf lotus.tar.gz jacket
