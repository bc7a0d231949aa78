#!/usr/bin/env bash
# The image: built by buildah from deploy/Containerfile (with this build's programs; the stage that
# compiles needs a registry: test_image_stage.sh), run by podman and runc as Kubernetes would: any user, read-only root, no
# capability. Skipped where those tools or the rights are missing.
# ctest: COST 15
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
for tool in buildah podman runc; do
  command -v $tool >/dev/null || skip "$tool is not installed"
done
[ "$(id -u)" = 0 ] || skip "needs root"
[ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "a sanitized build is no image"

# A store of its own, gone with the test.
cat >"$work/storage.conf" <<X
[storage]
driver = "vfs"
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
  cleanup
}
trap remove_containers EXIT

check "the root is laid out" bash "$repo/deploy/image-root.sh" "$build" "$work/root"
check "no shell in it" test -z "$(find "$work/root" -name '*sh' -path '*/bin/*')"
check "the image is built" buildah bud --isolation chroot --network host --pull-never --build-arg ROOT=prebuilt \
  -f "$repo/deploy/Containerfile" -t localhost/braid:test "$work/root"
podman image exists localhost/braid:test || { finish; exit 1; }

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
