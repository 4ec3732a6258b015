#!/usr/bin/env bash
# Builds the Debian package, described in Cargo.toml under [package.metadata.deb], and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
command -v cargo-deb >/dev/null || "$cargo" install --locked cargo-deb
if ! command -v dpkg-shlibdeps >/dev/null; then
  echo "dpkg-shlibdeps is missing (it finds the libraries that the package depends on); as root: apt-get install dpkg-dev" >&2
  exit 1
fi

"$cargo" build --release --locked

# What the program says of itself.
target=${CARGO_TARGET_DIR:-target}
mkdir -p target/deb/man
rm -f target/deb/man/*.1
"$target/release/tickwatch" man --dir target/deb/man
for shell in bash zsh fish; do
  "$target/release/tickwatch" completions "$shell" >"target/deb/tickwatch.$shell"
done

# What changed is in the repository's log; Debian wants one entry a version.
version=$("$target/release/tickwatch" --version | cut -d' ' -f2)
cat >target/deb/changelog <<END
tickwatch ($version-1) unstable; urgency=medium

  * Built from version $version.

 -- tickwatch maintainers <maintainers@tickwatch.invalid>  $(git log -1 --format=%cD 2>/dev/null || date -R)
END

"$cargo" deb --locked --no-build
