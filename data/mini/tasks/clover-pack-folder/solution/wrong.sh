#!/bin/bash
cd /app
tar -cf forest.tar.gz clover
