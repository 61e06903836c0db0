#!/usr/bin/env bash
# Gives the browser tests a Chromium where the system's package manager can; without one they are skipped and say so.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null && exit 0
fi
echo "no Chromium and no way to install one here: the browser tests will be skipped" >&2
