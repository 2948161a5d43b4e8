#!/usr/bin/env bash
# system_packages.sh PACKAGE=COMMAND ...: installs each Debian package whose command is missing.
set -euo pipefail
missing=()
for pair in "$@"; do
    command -v "${pair#*=}" >/dev/null || missing+=("${pair%%=*}")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "Missing system packages; install them and run make again: sudo apt-get install ${missing[*]}" >&2
    exit 2
fi
echo "Installing system packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
