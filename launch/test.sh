#!/usr/bin/env bash
# Set up, then run the tests. Arguments go to pytest, e.g. launch/test.sh tests/losses
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/setup.sh
set_up tests
exec "$PYTHON" -m pytest "$@"
