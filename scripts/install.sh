#!/usr/bin/env bash
# Makes .venv from requirements/dev.lock, every file checked against its hash: `make install`.
# With the argument `tools` it stops after .tools, which holds the installer (uv) that `make lock` uses too.
# With `old-ray FOLDER` it makes an environment from requirements/old-ray.lock there, with the Python of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

python=""
for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: Python 3.11, 3.12 or 3.13 is needed; found $(python3 --version 2>&1 || true)." \
    "Install one, or name it: make install PYTHON=/path/to/python3.12" >&2
  exit 2
fi

# Debian and Ubuntu put what `python3 -m venv` needs into a package of its own.
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "${SETUP:-}" != 0 ]; then
    echo "installing python3-venv (SETUP=0 forbids it)"
    apt-get update -qq && apt-get install -y -qq python3-venv
  else
    echo "error: $python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 2
  fi
fi

# The package mirror and certificate that pip is set up for serve uv as well, which reads none of pip's settings.
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-300}"  # seconds without a byte; some files here have a gigabyte
if [ -z "${SSL_CERT_FILE:-}" ] && [ -n "${PIP_CERT:-}" ]; then export SSL_CERT_FILE="$PIP_CERT"; fi

if ! cmp -s requirements/tools.lock .tools/installed; then
  echo "installing uv into .tools"
  rm -rf .tools
  "$python" -m venv .tools
  .tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.lock
  echo '*' > .tools/.gitignore
  cp requirements/tools.lock .tools/installed
fi
if [ -z "${UV_DEFAULT_INDEX:-}" ]; then
  index="${PIP_INDEX_URL:-$(.tools/bin/pip config get global.index-url 2>/dev/null || true)}"
  if [ -n "$index" ]; then export UV_DEFAULT_INDEX="$index"; fi
fi
if [ "${1:-}" = tools ]; then exit 0; fi
if [ "${1:-}" = old-ray ]; then
  .tools/bin/uv venv --quiet --clear --python .venv/bin/python "$2"
  .tools/bin/uv pip sync --quiet --python "$2/bin/python" --require-hashes requirements/old-ray.lock
  exit 0
fi

rm -f .venv/installed
if ! .venv/bin/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
  .tools/bin/uv venv --quiet --clear --python "$python" .venv
fi
# DeepSpeed comes as source; its operators are compiled when they are first used, not now.
export DS_BUILD_OPS=0
# `sync` also removes what the lock no longer names, so that an old environment and a fresh one are the same.
.tools/bin/uv pip sync --python .venv/bin/python --require-hashes --build-constraints requirements/tools.lock \
  requirements/dev.lock
.tools/bin/uv pip install --quiet --python .venv/bin/python --no-deps --build-constraints requirements/tools.lock \
  --editable .
touch .venv/installed
