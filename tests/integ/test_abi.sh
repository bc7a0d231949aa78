#!/usr/bin/env bash
# The C library as its user gets it: installed, found by pkg-config and by CMake, exporting braid_*
# and nothing else; every function of braid.h against real servers; the example trainer learns.
# ctest: RESOURCE_LOCK install
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/servers.sh"
need braid-ps
[ -e "$build/lib/libbraid.so" ] || skip "$build/lib/libbraid.so is not built"
prefix=$work/prefix
: >"$out" >"$err"

check "installs the library" cmake --install "$build" --prefix "$prefix" --component lib
check "installs" cmake --install "$build" --prefix "$prefix" --component sdk
lib=$(find "$prefix" -name libbraid.so) pc=$(find "$prefix" -name braid.pc)
export PKG_CONFIG_PATH=${pc%/*} LD_LIBRARY_PATH=${lib%/*}
sed -i "s|^prefix=.*|prefix=$prefix|" "$pc"

# ---- symbols ----
functions() { grep -oE '\bbraid_[a-z0-9_]+\(' "$prefix/include/braid.h" | tr -d '(' | sort -u; }
exported() { nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u; }
functions >"$work/header.txt"
exported >"$work/exported.txt"
check "exports what the header declares and nothing else" diff "$work/header.txt" "$work/exported.txt"
check "44 functions or more" test "$(wc -l <"$work/header.txt")" -ge 44
check "has a SONAME" sh -c "readelf -d '$lib' | grep -q 'SONAME.*libbraid.so.1'"
check "does not bring jemalloc" sh -c "! readelf -d '$lib' | grep -q jemalloc"
self_test() { # the comparison notices a stray symbol
  (cat "$work/exported.txt" && echo px_pack) | sort | diff -q "$work/header.txt" - >/dev/null && return 1
  return 0
}
check "a stray symbol would be seen" self_test

# ---- compilers ----
strict="-std=c17 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror"
flags=$(pkg-config --cflags --libs braid)
# shellcheck disable=SC2086 # flags are words
check "the checks compile" cc $strict -D_GNU_SOURCE -O1 -o "$work/abi_check" "$repo/tests/integ/abi/check.c" $flags -lm -lpthread
# shellcheck disable=SC2086
check "so does the one of references" cc $strict -o "$work/abi_rref" "$repo/tests/integ/abi/rref.c" $flags
# shellcheck disable=SC2086
check "the example compiles" cc $strict -o "$work/trainer" "$repo/examples/c/trainer.c" $flags -lm
printf '#include <braid.h>\nint main() { return braid_abi_version() == BRAID_ABI_VERSION ? 0 : 1; }\n' >"$work/plus.cc"
# shellcheck disable=SC2086
check "C++ can include the header" c++ -Wall -Wextra -Wpedantic -Werror -o "$work/plus" "$work/plus.cc" $flags
check "and call it" "$work/plus"
mkdir -p "$work/cmake"
cat >"$work/cmake/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(braid 0.1 REQUIRED)
add_executable(trainer trainer.c)
target_link_libraries(trainer PRIVATE braid::braid m)
CMAKE
cp "$repo/examples/c/trainer.c" "$work/cmake/trainer.c"
cmake_user() { cmake -S "$work/cmake" -B "$work/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$work/cmake/build"; }
check "found by CMake" cmake_user

# ---- against real servers ----
for n in 1 3; do
  servers_start "$n"
  timeout 120 "$work/abi_check" "$coordinator" >"$out" 2>"$err" && code=0 || code=$?
  check "every call, $n servers" exits 0
  check "nothing is printed by the library" test ! -s "$err"
  timeout 60 "$work/abi_rref" "$coordinator" >"$out" 2>"$err" && code=0 || code=$?
  check "references, $n servers" exits 0
  timeout 120 "$work/cmake/build/trainer" "$coordinator" >"$out" 2>"$err" && code=0 || code=$?
  check "the example ends well, $n servers" exits 0
  first=$(sed -n 's/^step 1 loss //p' "$out") last=$(sed -n 's/^step 400 loss //p' "$out")
  check "the example learns: $first to $last" at_most "$(awk -v l="$last" -v f="$first" 'BEGIN { print l / f }')" 0.3
  cp "$out" "$work/trainer-$n.txt"
  for ((i = 0; i < n; i++)); do
    check "server $i stops in good order" server_stop "$i"
  done
  rm -rf "$work"/ps-*
done
check "the number of servers changes nothing" diff "$work/trainer-1.txt" "$work/trainer-3.txt"
# Nobody there any more: the example, which waits for 30 s, ends by itself, with a reason; here after 1 s.
sed 's/\.coordinator = argc/.connect_wait_ms = 1000, &/' "$repo/examples/c/trainer.c" >"$work/hasty.c"
check "the hasty example differs in a line" test "$(diff "$work/hasty.c" "$repo/examples/c/trainer.c" | grep -c '^<')" = 1
# shellcheck disable=SC2086
check "and compiles" cc $strict -o "$work/hasty" "$work/hasty.c" $flags -lm
timeout 60 "$work/hasty" "$coordinator" >"$out" 2>"$err" && code=0 || code=$?
check "no server: an error" exits 1
check "that says so" err_says "error: .*coordinator"
finish
