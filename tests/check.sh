#!/usr/bin/env bash
# usage: tests/check.sh [STAGE...]   the slower checks; stages: tidy asan tsan fuzz pods image (default: all)
#
# Build folders: build-tidy, build-asan, build-tsan, build-fuzz.
# Each stage stops at its first failing step; all stages run, and the exit status says if one failed.
# Time on 2 cores from nothing: about 12 minutes, most of it compiling.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(tidy asan tsan fuzz pods image)

# Every test executable of a configured folder; integration tests need their time limits.
test_targets() { # folder
  ninja -C "$1" -t targets all | sed -n 's/^\(test_[a-z0-9_]*\): phony$/\1/p'
}

configure() { # folder, cmake arguments...
  local dir=$1
  shift
  cmake -S . -B "$dir" -G Ninja -DBRAID_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" >"$dir.cmake.log" 2>&1 ||
    { cat "$dir.cmake.log"; return 1; }
}

# Configures, builds tests and the binaries that some of them start, and runs them.
sanitized() { # folder, sanitizers, ctest arguments...
  local dir=$1 what=$2
  shift 2
  configure "$dir" "-DBRAID_SANITIZE=$what" || return 1
  # shellcheck disable=SC2046
  cmake --build "$dir" -j "$jobs" -- $(test_targets "$dir") braid-ps braid-worker braid >"$dir.build.log" 2>&1 ||
    { grep -E ' error|undefined reference|FAILED' "$dir.build.log" | cut -c1-300 | head -40; return 1; }
  ctest --test-dir "$dir" -L 'unit|sim' --output-on-failure -j "$jobs" "$@"
}

# In a folder of its own without CUDA, so that every machine looks at the same files.
stage_tidy() {
  configure build-tidy || return 1
  # headers that are made by the build
  cmake --build build-tidy --target braid_build_info braid_proto_gen -j "$jobs" >/dev/null || return 1
  JOBS=$jobs bash tests/lint/tidy.sh build-tidy
}

# Leaks of libraries that are not ours: tests/lsan.supp.
stage_asan() {
  LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0 \
    ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 \
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    sanitized build-asan address,undefined
}

# gRPC and the other libraries are not instrumented: what they do among themselves is not looked at.
stage_tsan() {
  TSAN_OPTIONS=allocator_may_return_null=1:ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1 \
    sanitized build-tsan thread
}

# Every tests/fuzz/fuzz_*.c is one libFuzzer target that links every library; 60 s for all of them,
# started from the inputs in tests/fuzz/<name>/.
stage_fuzz() {
  local targets=(tests/fuzz/fuzz_*.c) f name seconds work libs=() l
  if [ ! -e "${targets[0]}" ]; then
    echo "fuzz: no targets"
    return 0
  fi
  if ! command -v clang >/dev/null; then
    echo "SKIP: fuzz: clang is not installed"
    return 0
  fi
  local sanitizers=address,undefined
  CC=clang configure build-fuzz "-DBRAID_SANITIZE=fuzzer-no-link,$sanitizers" || return 1
  for l in base proto; do libs+=("braid_$l"); done
  cmake --build build-fuzz -j "$jobs" -- "${libs[@]}" >build-fuzz.build.log 2>&1 ||
    { grep -E ' error|FAILED' build-fuzz.build.log | cut -c1-300 | head -40; return 1; }
  mkdir -p build-fuzz/bin
  seconds=$((60 / ${#targets[@]}))
  for f in "${targets[@]}"; do
    name=$(basename "$f" .c)
    # shellcheck disable=SC2046
    clang -std=c17 -g -O1 -D_GNU_SOURCE -I. -Ibuild-fuzz/proto "-fsanitize=fuzzer,$sanitizers" \
      "$f" build-fuzz/libbraid_proto.a build-fuzz/libbraid_base.a -o "build-fuzz/bin/$name" \
      $(pkg-config --libs libprotobuf-c yaml-0.1 jansson libmicrohttpd zlib libzstd liblz4 libxxhash) -lm || return 1
    work=$(mktemp -d)
    if ! "build-fuzz/bin/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
      -artifact_prefix="build-fuzz/" "$work" "tests/fuzz/$name" >"build-fuzz/$name.log" 2>&1; then
      tail -30 "build-fuzz/$name.log"
      return 1
    fi
    rm -rf "$work"
    echo "fuzz: $name: $(grep -c . "build-fuzz/$name.log") log lines, $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs/p' "build-fuzz/$name.log")"
  done
}

# What takes too long for every run, with the build that `make test` has tested: the cluster as containers,
# and tables of 2 GiB on a server with 512 MiB.
stage_pods() {
  local dir=${BUILD:-build}
  if [ ! -x "$dir/bin/braid-ps" ]; then
    echo "SKIP: pods: $dir is not built"
    return 0
  fi
  PODS=podman bash tests/integ/test_pods.sh "$dir" && HEAVY=1 bash tests/integ/test_pod_memory.sh "$dir"
}

# The image, compiled by its own file, on a base of the packages that are installed here: no network.
stage_image() {
  local dir=${BUILD:-build}
  if [ ! -x "$dir/bin/braid-ps" ]; then
    echo "SKIP: image: $dir is not built"
    return 0
  fi
  BASE=local bash tests/integ/test_container.sh "$dir"
}

failed=()
for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "check: no stage $stage; stages are tidy asan tsan fuzz pods image" >&2
    exit 2
  fi
  echo "== $stage"
  start=$SECONDS
  "stage_$stage" || failed+=("$stage")
  echo "== $stage took $((SECONDS - start)) s"
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
echo "check: ok"
