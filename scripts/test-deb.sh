#!/usr/bin/env bash
# Installs the newest package of target/debian on this machine as root, looks at what came, and takes it away again.
set -euo pipefail
cd "$(dirname "$0")/.."

package=$(ls -t "${CARGO_TARGET_DIR:-target}"/debian/tickwatch_*.deb | head -1)
fail() { echo "test-deb: $*" >&2; exit 1; }
there() { [ -e "$1" ] || fail "$1 is missing"; }
gone() { [ ! -e "$1" ] || fail "$1 is still there"; }

[ "$(id -u)" = 0 ] || fail "run as root: a package is installed"
if dpkg-query -W tickwatch >/dev/null 2>&1; then fail "tickwatch is installed on this machine; purge it first"; fi
trap 'dpkg --purge tickwatch >/dev/null 2>&1 || true' EXIT

echo "== install $package"
env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "./$package" </dev/null >/dev/null
for file in /usr/bin/tickwatch /etc/tickwatch/tickwatch.toml /usr/share/bash-completion/completions/tickwatch \
  /usr/share/zsh/vendor-completions/_tickwatch /usr/share/fish/vendor_completions.d/tickwatch.fish; do
  there "$file"
done
# Where documentation and manual pages are kept out of an image (dpkg's path-exclude), they are in the package all the same.
dpkg-deb --contents "$package" >/tmp/test-deb.$$
for file in usr/share/man/man1/tickwatch.1.gz usr/share/man/man1/tickwatch-rule-put.1.gz usr/share/doc/tickwatch/README.md \
  usr/share/doc/tickwatch/ops/prometheus/alerts.yml usr/share/doc/tickwatch/docs/operations.md; do
  grep -q "\./$file$" /tmp/test-deb.$$ || { rm /tmp/test-deb.$$; fail "$file is not in the package"; }
done
rm /tmp/test-deb.$$
getent passwd tickwatch >/dev/null || fail "there is no user tickwatch"
[ "$(dpkg-query -W -f '${Conffiles}' tickwatch | awk '{print $1}')" = /etc/tickwatch/tickwatch.toml ] || fail "tickwatch.toml is no conffile"
/usr/bin/tickwatch --config /etc/tickwatch/tickwatch.toml config check --offline
if command -v systemd-analyze >/dev/null; then
  unit=$(dpkg-query -L tickwatch | grep '/tickwatch\.service$')
  said=$(systemd-analyze verify --man=no "$unit" 2>&1) || fail "systemd: $said"
  [ -z "$said" ] || fail "systemd: $said"
fi

echo "== a changed configuration outlives the package, until it is purged"
echo '# changed here' >>/etc/tickwatch/tickwatch.toml
dpkg --remove tickwatch >/dev/null
gone /usr/bin/tickwatch
there /etc/tickwatch/tickwatch.toml
dpkg --purge tickwatch >/dev/null
gone /etc/tickwatch
if getent passwd tickwatch >/dev/null; then fail "the user tickwatch is still there"; fi
if dpkg-query -W tickwatch >/dev/null 2>&1; then fail "dpkg still knows the package"; fi
trap - EXIT
echo "installed, looked at, removed and purged"
