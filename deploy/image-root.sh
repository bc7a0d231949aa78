#!/usr/bin/env bash
# Lays out the root of the container image: the three programs, the libraries they load, nothing else -
# no shell, no package manager. Used by deploy/Containerfile and by its test.
#   deploy/image-root.sh BUILD_DIR ROOT
set -euo pipefail
build=${1:?usage: $0 BUILD_DIR ROOT} root=${2:?usage: $0 BUILD_DIR ROOT}

install -d "$root"/usr/bin "$root"/etc "$root"/var/lib/braid "$root"/tmp "$root"/data
for program in braid braid-ps braid-worker; do
  install -s -m 755 "$build/bin/$program" "$root/usr/bin/"
  cmake "-DFILE=$root/usr/bin/$program" -P "$(dirname "$0")/cmake/BraidNoRpath.cmake"
  ldd "$build/bin/$program"
done | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' | sort -u |
  while read -r library; do
    case $library in
    */ld-linux*) install -D -m 755 "$(readlink -f "$library")" "$root$library" ;; # where programs ask for it
    *) install -D -m 644 "$(readlink -f "$library")" "$root/usr/lib/braid/$(basename "$library")" ;;
    esac
  done
# The loader looks here without a cache and without LD_LIBRARY_PATH.
case $(uname -m) in
x86_64) triplet=x86_64-linux-gnu ;;
aarch64) triplet=aarch64-linux-gnu ;;
*) echo "error: image-root.sh knows x86_64 and aarch64, not $(uname -m)" >&2 && exit 2 ;;
esac
mkdir -p "$root/usr/lib" "$root/lib"
ln -s braid "$root/usr/lib/$triplet"
[ -e "$root/lib/$triplet" ] || ln -s ../usr/lib/braid "$root/lib/$triplet"

printf 'root:x:0:0:root:/:/nologin\nbraid:x:10001:10001:braid:/var/lib/braid:/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\nbraid:x:10001:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
chown 10001:10001 "$root/var/lib/braid" "$root/data" 2>/dev/null || true # not root: the volume's business
chmod 1777 "$root/tmp"
