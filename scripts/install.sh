#!/usr/bin/env bash
# Installs what the build, the tests and the demo need and this machine lacks. Idempotent, asks nothing.
#
#   scripts/install.sh            a C toolchain, redis-server, Kafka's jars
#   scripts/install.sh compose    also what `make test-compose` needs: dockerd, docker-compose, debootstrap
#   scripts/install.sh peers      also what builds the Kafka Streams peers of `make bench-peers`: a JDK, Maven
#   scripts/install.sh bench-check   also what `make bench-check` counts with: valgrind
#   scripts/install.sh browser    also Chromium and its driver (about 400 MB), with which tests look at the live page;
#                                 TW_TEST_BROWSER=1 asks for the same, as `make test` does
#   scripts/install.sh ops        also what checks the files under ops/: Prometheus' promtool, kubernetes-validate, and
#                                 the shells whose completions are tried (about 300 MB); TW_TEST_OPS=1 asks for the same
#
# What cannot be installed is named with the next step. Only what the build itself needs is fatal: tests that
# lack a part report themselves as skipped, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

missing_for_build=0

say() { echo "install: $*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

can_install() {
  have apt-get && { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }
}

# apt PACKAGE…: installs from the machine's own package sources; the lists are read again only if that fails.
apt() {
  say "installing $*"
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@")
  as_root "${install[@]}" </dev/null >/dev/null 2>&1 ||
    { as_root apt-get update -qq </dev/null >/dev/null && as_root "${install[@]}" </dev/null >/dev/null; }
}

# need COMMAND PURPOSE PACKAGE…: makes sure that COMMAND is there.
need() {
  local command=$1 purpose=$2
  shift 2
  have "$command" && return 0
  if ! can_install; then
    say "$command is missing ($purpose); as root: apt-get install $*"
    return 1
  fi
  apt "$@" || { say "could not install $* ($purpose)"; return 1; }
}

need gcc "builds librdkafka" build-essential || missing_for_build=1
need g++ "builds librdkafka" build-essential || missing_for_build=1
need make "builds librdkafka" build-essential || missing_for_build=1
need pkg-config "builds librdkafka" pkg-config || missing_for_build=1
if [ ! -e /usr/include/zlib.h ] && can_install; then
  apt zlib1g-dev || say "could not install zlib1g-dev; librdkafka then builds without gzip"
fi
if ! pkg-config --exists openssl 2>/dev/null; then
  if can_install && apt libssl-dev; then :; else
    say "OpenSSL's headers are missing (TLS); as root: apt-get install libssl-dev"
    missing_for_build=1
  fi
fi

need redis-server "tests and demo" redis-server || true

kafka_libs=${TW_KAFKA_LIBS:-.cache/kafka/libs}
if [ ! -e "$kafka_libs/.complete" ] && [ -z "${TW_KAFKA_LIBS:-}" ]; then
  need java "runs Kafka's broker" openjdk-17-jre-headless || true
  need mvn "fetches Kafka's jars" maven || true
  if have java && have mvn; then
    say "fetching Kafka's jars (55 MB)"
    mkdir -p "$kafka_libs"
    if mvn -B -q -f scripts/kafka-jars/pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
      -DoutputDirectory="$PWD/$kafka_libs" </dev/null >&2; then
      touch "$kafka_libs/.complete"
    else
      say "could not fetch Kafka's jars; tests that need the real broker will be skipped, the demo uses a mock broker"
    fi
  else
    say "without java and mvn there is no Kafka; tests that need the real broker will be skipped"
  fi
fi

case "${1:-}" in
  compose)
    need dockerd "runs the containers" docker.io || true
    need docker-compose "starts the services" docker-compose || true
    need debootstrap "builds the stand-in images" debootstrap || true
    ;;
  peers)
    need javac "compiles the peers" openjdk-17-jdk-headless || true
    need mvn "builds the peers" maven || true
    ;;
  bench-check)
    need valgrind "counts instructions" valgrind || true
    ;;
esac

if [ "${1:-}" = browser ] || [ "${TW_TEST_BROWSER:-}" = 1 ]; then
  need chromium "shows the live page to tests" chromium || true
  need chromedriver "steers chromium" chromium-driver || true
fi

if [ "${1:-}" = ops ] || [ "${TW_TEST_OPS:-}" = 1 ]; then
  need promtool "checks alerts" prometheus || true # Debian starts the server with it: systemctl disable --now prometheus
  need zsh "tries its completions" zsh || true
  need fish "tries its completions" fish || true
  need lintian "checks the Debian package" lintian || true
  validator=.cache/kubernetes-validate
  if [ ! -x "$validator/bin/kubernetes-validate" ]; then
    python3 -c 'import ensurepip' 2>/dev/null || { can_install && apt python3-venv; } || true
    # In an environment of its own: Debian's Python takes no packages from elsewhere.
    { python3 -m venv "$validator" && "$validator/bin/pip" install -q --disable-pip-version-check kubernetes-validate </dev/null; } >&2 ||
      say "could not install kubernetes-validate (checks ops/kubernetes)"
  fi
fi

if [ "$missing_for_build" = 1 ]; then
  exit 1
fi
