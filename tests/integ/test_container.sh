#!/usr/bin/env bash
# The image: built by buildah from deploy/Containerfile, run by podman and runc as Kubernetes would: any user,
# read-only root, no capability. Skipped where those tools or the rights are missing.
# BASE says what its first stage is made of:
#   none         this build's programs instead of it (make test)
#   local        the packages that are installed here, without network (make check): tests/deploy/local_base.py
#   debootstrap  a fresh Debian of `debootstrap` and apt, from the network (make soak)
# CUDA=ON (make soak) builds what the GPU hosts run, with the toolkit of this machine.
# ctest: COST 15
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
base=${BASE:-none} cuda=${CUDA:-OFF}
for tool in buildah podman runc; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
[ "$(id -u)" = 0 ] || skip "needs root"
[ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "a sanitized build is no image"

# A store of its own, gone with the test. A whole base is large: not in copies, where that can be.
driver=vfs
mkdir "$work"/{lower,upper,over,merged}
if [ "$base" != none ] && mount -t overlay overlay -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/over" "$work/merged" 2>/dev/null; then
  umount "$work/merged"
  driver=overlay
fi
cat >"$work/storage.conf" <<X
[storage]
driver = "$driver"
graphroot = "$work/store"
runroot = "$work/run"
X
cat >"$work/containers.conf" <<X
[containers]
default_ulimits = ["nofile=4096:4096","nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
X
export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
names=()
remove_containers() {
  local name
  for name in "${names[@]}"; do podman rm -f -t 0 "$name" >/dev/null 2>&1 || true; done
  # The store's layers are mounts.
  awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | sort -r | while read -r at; do umount "$at" || true; done
  cleanup
}
trap remove_containers EXIT

# ---- built ----
bud=(buildah bud --isolation chroot --network host --pull-never -f "$repo/deploy/Containerfile" -t localhost/braid:test)
prebuilt() {
  bash "$repo/deploy/image-root.sh" "$build" "$work/root" && "${bud[@]}" --target prebuilt "$work/root"
}
# What a clone holds, with its history where that is here, for the version.
clone() {
  git clone -q --depth 1 "file://$(git -C "$repo" rev-parse --git-common-dir | sed "s,^\.git,$repo/.git,")" "$work/clone" 2>/dev/null || mkdir -p "$work/clone"
  (cd "$repo" && git ls-files -z | xargs -0 cp --parents -t "$work/clone") && [ -f "$work/clone/CMakeLists.txt" ]
}
root_to_image() { tar -C "$1" -c . | podman import -q - localhost/base:test; }
base_local() { # prints which packages are not here
  local names
  mapfile -t names < <(bash "$repo/deploy/install-deps.sh" --names)
  python3 "$repo/tests/deploy/local_base.py" "$work/base" "${names[@]}"
}
base_debootstrap() {
  debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/base" >"$work/debootstrap.log" 2>&1 ||
    { tail -2 "$work/debootstrap.log"; return 1; }
  rm -rf "$work/base"/etc/apt/sources.list* && cp -r /etc/apt/sources.list* /etc/apt/keyrings /etc/apt/apt.conf.d "$work/base/etc/apt/"
}
whole() { # from source; a cache of objects of earlier builds may be used
  local volumes=() offline=()
  if command -v ccache >/dev/null; then
    mkdir -p "$(ccache -k cache_dir)" && volumes=(-v "$(ccache -k cache_dir):/root/.cache/ccache")
  fi
  [ "$cuda" = OFF ] || volumes+=(-v "$(readlink -f /usr/local/cuda):/usr/local/cuda:ro")
  [ "$base" != local ] || offline=(unshare -n)
  "${offline[@]}" "${bud[@]}" "${volumes[@]}" --build-arg BASE=localhost/base:test --build-arg "CUDA=$cuda" "$work/clone" >"$work/bud.log" 2>&1 ||
    { tail -20 "$work/bud.log"; return 1; }
}
case $base in
none)
  [ "$cuda" = OFF ] || { echo "error: CUDA=ON needs a BASE" >&2 && exit 2; }
  check "the image is built" prebuilt
  ;;
local | debootstrap)
  [ "$cuda" = OFF ] || [ -x /usr/local/cuda/bin/nvcc ] || skip "no CUDA toolkit in /usr/local/cuda"
  why=$("base_$base" 2>&1) || skip "no base ($base): $why"
  rm -f "$work/base/etc/resolv.conf"
  check "its base is an image" root_to_image "$work/base"
  check "a clone" clone
  check "the image is built from source" whole
  check "by the lines of its first stage" test "$(grep -cE 'STEP [0-9/]+: RUN (bash deploy/install-deps.sh|cmake .*image-root.sh)' "$work/bud.log")" = 2
  rm -rf "$work/base" "$work/clone"
  ;;
*) echo "error: BASE is none, local or debootstrap" >&2 && exit 2 ;;
esac
podman image exists localhost/braid:test || { finish; exit 1; }

# ---- looked at ----
image_files() { podman save localhost/braid:test 2>/dev/null | tar -C "$work/saved" -x && (cd "$work/saved" && for layer in $(find . -type f -size +1k ! -name '*.json'); do tar -tf "$layer" 2>/dev/null; done || true) >"$work/files.txt"; }
mkdir "$work/saved"
check "its files" image_files
rm -rf "$work/saved"
has() { grep -qE "$1" "$work/files.txt" || { echo "no $1"; return 1; }; }
for program in braid braid-ps braid-worker; do check "$program is in it" has "^usr/bin/$program\$"; done
check "no shell, no package manager" test -z "$(grep -E '(^|/)s?bin/.*(sh|dpkg|apt)$' "$work/files.txt")"
check "no source, no compiler" test -z "$(grep -E '\.[ch]$|bin/.*(cc|cmake)$|^src/' "$work/files.txt")"
if [ "$cuda" = ON ]; then
  for library in cudart nccl; do check "lib$library is in it" has "^usr/lib/braid/lib$library\.so\."; done
fi

# ---- run ----

hardened=(--network host --read-only --cap-drop ALL --security-opt no-new-privileges)
podman run --rm --network none --read-only --cap-drop ALL localhost/braid:test /usr/bin/braid-ps --version >"$out" 2>"$err" ||
  grep -vqE 'cgroup|mount|operation not permitted|netns' "$err" || skip "containers do not run here: $(tail -1 "$err")"
check "it says its version" out_says '^braid-ps [0-9.]+ \(commit'

port=$(free_port) page=127.0.0.1:$(free_port)
mkdir "$work/data" && chown 10001:10001 "$work/data"
start_ps() {
  names+=("braid-test-$$")
  podman run -d --name "braid-test-$$" "${hardened[@]}" -v "$work/data:/var/lib/braid" \
    -e BRAID_DATA_DIR=/var/lib/braid/ps -e "BRAID_LISTEN=127.0.0.1:$port" \
    -e "BRAID_METRICS_LISTEN=$page" localhost/braid:test /usr/bin/braid-ps >"$out" 2>"$err"
}
page() { curl -sf "http://$page/$1"; }
check "a server starts" start_ps
check "it becomes ready" until_true 30 page healthz
check "it runs as user 10001" test "$(podman top "braid-test-$$" huser 2>/dev/null | tail -1)" = 10001
check "without a capability" test "$(awk '/^CapEff/ { print $2 }' "/proc/$(podman inspect -f '{{.State.Pid}}' "braid-test-$$")/status")" = 0000000000000000
sed 's/workers: .*//' "$repo/tests/integ/small.yaml" >"$work/job.yaml"
"$bin/braid" datagen --rows 3000 --out "$work/clicks.tsv.gz" >/dev/null 2>&1
train() {
  podman run --rm "${hardened[@]}" --tmpfs /tmp -v "$work:/job" --user 10001 localhost/braid:test /usr/bin/braid-worker \
    /job/job.yaml --set data.generate.rows=0 --set data.generate.test_rows=0 --set data.train=/job/clicks.tsv.gz \
    --run-dir /job/data/run --coordinator "127.0.0.1:$port" >"$out" 2>"$err"
}
chmod 755 "$work" && chmod 644 "$work"/*.yaml "$work"/*.gz
check "a worker trains against it" train
check "and tells its result" out_says '^RESULT \{.*param_hash'
check "braid ps status asks it" podman run --rm "${hardened[@]}" localhost/braid:test /usr/bin/braid ps status --coordinator "127.0.0.1:$port"
podman stop -t 20 "braid-test-$$" >/dev/null 2>&1 || true
check "SIGTERM: it writes back and exits with 0" test "$(podman inspect -f '{{.State.ExitCode}}' "braid-test-$$")" = 0
finish
