#!/usr/bin/env bash
# Starts the compose file with three workers on stand-in images, runs tests/it/compose.rs against it (ticks in
# through the published port, notifications and candles out, a killed worker's partitions taken over), and takes
# everything down. Starts a Docker daemon if none runs, and then ends it too. Where there can be none it prints
# `skipped: no docker daemon` and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null

daemon=
compose=()
daemon_log=.cache/dockerd.log

say() { echo "test-compose: $*" >&2; }

# Ports of their own, so that a Redis and a Kafka of this machine are not in the way.
export TW_REDIS_PORT=${TW_REDIS_PORT:-16379}
export TW_KAFKA_PORT=${TW_KAFKA_PORT:-19094}

start_daemon() {
  docker info >/dev/null 2>&1 && return 0
  { [ "$(id -u)" = 0 ] && command -v dockerd >/dev/null 2>&1; } || return 1
  local driver
  mkdir -p .cache
  for driver in overlay2 vfs; do
    say "starting dockerd ($driver)"
    dockerd --storage-driver "$driver" >"$daemon_log" 2>&1 &
    daemon=$!
    for _ in $(seq 120); do
      docker info >/dev/null 2>&1 && return 0
      kill -0 "$daemon" 2>/dev/null || break
      sleep 0.5
    done
    stop_daemon
  done
  tail -5 "$daemon_log" >&2
  return 1
}

stop_daemon() {
  [ -n "$daemon" ] || return 0
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" 2>/dev/null || true
  daemon=
}

cleanup() {
  local status=$?
  if [ "${#compose[@]}" != 0 ]; then
    if [ "$status" != 0 ]; then
      "${compose[@]}" ps >&2 || true
      "${compose[@]}" logs --tail 40 >&2 || true
    fi
    "${compose[@]}" down --volumes --timeout 10 >/dev/null 2>&1 || say "could not take everything down"
  fi
  stop_daemon
  exit "$status"
}
trap cleanup EXIT

find_compose() {
  local command
  if docker compose version >/dev/null 2>&1; then
    command=(docker compose)
  elif command -v docker-compose >/dev/null 2>&1; then
    command=(docker-compose)
  else
    return 1
  fi
  compose=("${command[@]}" -p tickwatch-test -f docker-compose.yml -f docker-compose.local.yml)
}

scripts/install.sh compose
if ! start_daemon; then
  echo "skipped: no docker daemon"
  exit 0
fi
if ! find_compose; then
  echo "skipped: neither docker compose nor docker-compose"
  exit 0
fi

"${CARGO:-cargo}" test --locked --features failpoints --test it --no-run
scripts/local-images.sh
"${compose[@]}" up -d --no-build --scale worker=3

log=$(mktemp)
status=0
TW_TEST_COMPOSE="${compose[*]}" "${CARGO:-cargo}" test --locked --features failpoints --test it compose:: -- --test-threads 1 2>&1 |
  tee "$log" || status=$?
scripts/test-summary.sh <"$log"
rm -f "$log"
exit "$status"
