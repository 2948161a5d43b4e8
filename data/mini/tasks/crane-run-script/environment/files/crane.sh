#!/bin/sh
echo orchid
