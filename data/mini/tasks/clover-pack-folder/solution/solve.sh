#!/bin/bash
cd /app
tar -czf forest.tar.gz clover
