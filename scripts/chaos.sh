#!/usr/bin/env bash
# Runs the whole service while everything around it breaks, and holds what came out against what the source log means:
# RUNS seeds from SEED on, JOBS at a time. PROFILE=dev takes the quickly built program instead of the one to deploy.
# Arguments go to the machine (`scripts/chaos.sh --help`).
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install.sh

case "${PROFILE:-release}" in
  dev) profile=(--features failpoints) ;; # as `make test` builds it
  *) profile=(--profile "${PROFILE:-release}") ;;
esac
exec "${CARGO:-cargo}" test --locked "${profile[@]}" --test chaos -- \
  --runs "${RUNS:-20}" --seed "${SEED:-1}" --jobs "${JOBS:-2}" "$@"
