#!/usr/bin/env bash
# The Debian packages: built by cpack, twice the same bytes; unpacked, the programs run, the library is
# found by pkg-config, units are what systemd accepts, samples name options that exist.
# ctest: RESOURCE_LOCK install COST 15
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
for tool in cpack dpkg-deb dpkg-shlibdeps; do command -v $tool >/dev/null || skip "$tool is not installed"; done
[ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "a sanitized build is not packaged"
[ -e "$build/lib/libbraid.so.1" ] || skip "libbraid is not built"
export SOURCE_DATE_EPOCH=1700000000

pack() { (cd "$build" && cpack -G DEB -B "$work/$1"); }
check "cpack makes them" pack one
check "cpack makes them again" pack two
names() { (cd "$work/one" && ls ./*.deb | sed 's,^./,,; s/_.*//' | sort | tr '\n' ' '); }
check "four packages" test "$(names)" = "braid-ps braid-worker libbraid libbraid-dev "
sums() { (cd "$work/$1" && sha256sum ./*.deb); }
check "the same bytes both times" test "$(sums one)" = "$(sums two)"
for deb in "$work"/one/*.deb; do
  check "$(basename "$deb") unpacks" dpkg-deb -x "$deb" "$work/root"
  check "$(basename "$deb") names its libraries or libbraid" grep -qE '^ ?Depends: .*lib' <(dpkg-deb -I "$deb")
done
check "nothing tells the loader where to look" no_runpath "$work"/root/usr/bin/* "$work"/root/usr/lib/*.so*
for program in braid-ps braid-worker; do
  "$work/root/usr/bin/$program" --version >"$out"
  check "$program says version, commit, features" out_says "^$program [0-9.]+ \(commit [0-9a-f]{7,}.* of [0-9-]+; .*cuda="
done
for file in man/man1/braid.1 man/man1/braid-worker.1 man/man8/braid-ps.8 bash-completion/completions/braid \
  zsh/vendor-completions/_braid fish/vendor_completions.d/braid.fish; do
  check "$file is where it is looked for" test -s "$work/root/usr/share/$file"
done
check "braid runs" "$work/root/usr/bin/braid" --version
check "no file tells where it was built" sh -c "! grep -rlF '$repo/' '$work/root/usr/bin' '$work/root/usr/lib'"
export PKG_CONFIG_PATH=$work/root/usr/lib/pkgconfig
check "pkg-config finds the library where it was unpacked" test -e "$(pkg-config --variable=libdir braid)/libbraid.so"
check "and its header" test -e "$(pkg-config --variable=includedir braid)/braid.h"

options() { "$bin/$1" --help | grep -oE '^  --[a-z0-9_.]+' | sed 's/^ *--//' | tr 'a-z.' 'A-Z_' | sed 's/^/BRAID_/'; }
wrong_names() { # PROGRAM FILE
  grep -oE '\bBRAID_[A-Z_]+' "$2" | sort -u | grep -vxF -f <(options "$1") || true
}
samples=$work/root/usr/share/braid/samples units=$work/root/usr/lib/systemd/system
check "the server's sample and unit name options" test -z "$(wrong_names braid-ps "$samples/ps.env")$(wrong_names braid-ps "$units/braid-ps@.service" | grep -v '^BRAID_$')"
check "the worker's too" test -z "$(wrong_names braid-worker "$samples/worker.env")$(wrong_names braid-worker "$units/braid-worker@.service" | grep -v '^BRAID_$')"
# The programs take the samples' values: each is what they say, from the environment.
values() { sed -n 's/^\(BRAID_[A-Z_]*\)=/\1 /p' "$1"; }
taken() { # SAMPLE PROGRAM ARGS...
  local sample=$1 name value
  shift
  env -i $(grep -E '^BRAID_' "$sample") "$@" --print-config text >"$work/config.txt" || return 1
  while read -r name value; do
    grep -E "# environment $name\$" "$work/config.txt" | grep -qiF -- "$value" || { echo "$name=$value is not taken"; return 1; }
  done < <(values "$sample")
}
check "braid-ps takes its sample" taken "$samples/ps.env" "$bin/braid-ps" --index 1 --data-dir "$work/data"
check "braid-worker takes its own" taken "$samples/worker.env" "$bin/braid-worker" "$repo/tests/integ/small.yaml"
check "braid-worker takes the sample jobs" taken "$samples/worker.env" "$bin/braid-worker" "$samples/demo.yaml"
sed 's/^BRAID_STAGED_LIMIT=.*/BRAID_STAGED_LIMIT=1/' "$samples/ps.env" >"$work/small.env"
untaken() { ! taken "$@"; }
check "a value out of bounds is refused" untaken "$work/small.env" "$bin/braid-ps" --index 1 --data-dir "$work/data"
echo BRAID_LISTN=1 >"$work/wrong.env"
check "this test sees a wrong option" test "$(wrong_names braid-ps "$work/wrong.env")" = BRAID_LISTN
if command -v systemd-analyze >/dev/null; then
  verify() {
    sed "s,^ExecStart=,ExecStart=$work/root/usr/bin/," "$units/$1@.service" >"$work/$1@0.service"
    systemd-analyze verify --man=no "$work/$1@0.service" 2>"$work/verify.txt" || true
    ! grep -E "$1@" "$work/verify.txt"
  }
  check "systemd accepts braid-ps@.service" verify braid-ps
  check "systemd accepts braid-worker@.service" verify braid-worker
else
  echo "NOTICE: systemd-analyze is not installed: units are not verified"
fi
finish
