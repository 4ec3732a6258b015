#!/usr/bin/env bash
# Runs all tests (unit, integration, documentation) and closes with the list of what was skipped and one line:
# `N passed, N failed, N skipped`. Arguments go to `cargo test`. Built with the feature `failpoints`, which lets tests
# kill a worker at each border of its flow. TW_TEST_BROWSER=0 installs no Chromium (400 MB); tests that look at the live
# page are skipped without. TW_TEST_OPS=1 installs what the files under ops/ are checked with.
set -euo pipefail
cd "$(dirname "$0")/.."

TW_TEST_BROWSER=${TW_TEST_BROWSER-1} scripts/install.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
"${CARGO:-cargo}" test --locked --features failpoints --no-fail-fast "$@" </dev/null 2>&1 | tee "$log" || status=$?

scripts/test-summary.sh <"$log"
if [ "$status" != 0 ] && ! grep -q '^test result: FAILED' "$log"; then
  echo "cargo test ended with code $status before every test had run" >&2
fi
exit "$status"
