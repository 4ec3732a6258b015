#!/usr/bin/env bash
# Sums the output of `cargo test` (standard input): what was skipped, with the reason, then
# `N passed, N failed, N skipped`.
set -euo pipefail

awk '
  # "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ..."
  /^test result: / {
    for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed;/) passed += $(i - 1)
      if ($i ~ /^failed;/) failed += $(i - 1)
      if ($i ~ /^ignored;/) skipped += $(i - 1)
    }
    next
  }
  # "test name ... ignored, reason" (unit tests), "test name ... ignored (reason)" (integration tests)
  /^test .* \.\.\. ignored/ {
    line = substr($0, 6)
    at = match(line, / +\.\.\. ignored/)
    reason = substr(line, at + RLENGTH)
    sub(/^,? *\(?/, "", reason)
    sub(/\)$/, "", reason)
    list = list "  " substr(line, 1, at - 1) ": " (reason == "" ? "marked as ignored" : reason) "\n"
  }
  END {
    if (list != "") printf "\nskipped:\n%s", list
    printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped
  }
'
