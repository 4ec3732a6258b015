#!/usr/bin/env bash
# Builds the stand-in images of docker-compose.local.yml where no image registry can be reached: a minimal base
# of this machine's distribution (debootstrap, from its own package source), Kafka's jars and the binary built
# outside. Needs root, a Docker daemon, debootstrap, Kafka's jars (scripts/install.sh compose) and the binary
# (TICKWATCH_BINARY, or target/debug/tickwatch). The base is built once; remove image tickwatch-local/base to
# build it anew.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${TICKWATCH_BINARY:-${CARGO_TARGET_DIR:-target}/debug/tickwatch}
libs=${TW_KAFKA_LIBS:-.cache/kafka/libs}

fail() {
  echo "local-images: $*" >&2
  exit 1
}

[ -x "$binary" ] || fail "$binary is missing; run \`make build\`"
[ -d "$libs" ] || fail "Kafka's jars are missing in $libs; run \`make install\`"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build_base() {
  local mirror codename
  codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # The package source of this very release, as apt knows it.
  mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="$codename" '$1 == release && $2 == "main" { print $3; exit }')
  [ -n "$mirror" ] || fail "apt has no source for $codename main"
  echo "local-images: building the base ($codename)" >&2
  debootstrap --variant=minbase --include=redis-server,ca-certificates,openssl,openjdk-17-jre-headless \
    "$codename" "$work/base" "$mirror" >"$work/debootstrap.log" 2>&1 </dev/null ||
    { tail -20 "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
  rm -rf "$work/base/var/cache/apt/archives" "$work/base/var/lib/apt/lists" "$work/base/usr/share/doc"
  tar -C "$work/base" -c . | docker import - tickwatch-local/base >/dev/null
  rm -rf "$work/base"
}

docker image inspect tickwatch-local/base >/dev/null 2>&1 || build_base

context=$work/context
mkdir "$context"
cp -r scripts/local-images/. "$context"
cp -rL "$libs" "$context/kafka-libs"
# Debug information is of no use in there and is most of the file.
strip --strip-debug -o "$context/tickwatch" "$binary"
for target in redis kafka worker; do
  echo "local-images: building tickwatch-local/$target" >&2
  # The builder that every Docker has; BuildKit is a plugin and would ask a registry for the base image.
  DOCKER_BUILDKIT=0 docker build --quiet --target "$target" --tag "tickwatch-local/$target" "$context" \
    >/dev/null 2>"$work/build.log" || { cat "$work/build.log" >&2; fail "docker build failed"; }
done
