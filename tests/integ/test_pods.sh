#!/usr/bin/env bash
# The rendered StatefulSet and JobSet as pods on one machine (tests/deploy/pods): processes in namespaces
# with the image's root, user, volumes and limits, or containers of podman. Three servers and two workers,
# each with an address of its own behind 1 Gbit/s, train on real data; the same again with a rolling
# restart of all servers, a killed one and one that is cut off for 10 s: no failed worker, the same model
# bit for bit, told by /metrics.
# PODS=podman (make check): containers, and a name service that loses packets while servers move.
# ctest: RESOURCE_LOCK pods COST 45
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
. "$repo/tests/deploy/pods/needs.sh"
data=$repo/../shared/data/adult
[ -f "$data/adult.data.gz" ] || skip "$data is not there"
pods_or_skip

cp -r "$repo/deploy" "$work/deploy"
sed -e 's/^name: .*/name: braid-train/; s/^servers: .*/servers: 3/; s/^  batch: .*/  batch: 64/' \
  -e 's#^  \(train\|test\): .*/#  \1: /data/#' "$repo/examples/adult.yaml" >"$work/deploy/k8s/workers/job/job.yaml"
pods_job "$work" adult
"$kubectl" kustomize "$work/deploy/k8s/overlays/prod" >"$work/servers.yaml"
"$kubectl" kustomize "$work/job" >"$work/workers.yaml"
bash "$repo/deploy/image-root.sh" "$build" "$work/image" >"$out" 2>&1
chmod 755 "$work"

scenario() { # RUNNER
  mkdir -p "$work/$1"
  "$python" "$repo/tests/deploy/pods/scenario.py" --servers "$work/servers.yaml" --workers "$work/workers.yaml" \
    --image "$work/image" --work "$work/$1" --data "$data" --repo "$repo" --runner "$@"
}
case ${PODS:-process} in
process) scenario process ;;
podman)
  for program in podman buildah runc; do
    command -v $program >/dev/null || skip "$program is not installed"
  done
  scenario podman --lost-names
  ;;
*) echo "error: PODS is process or podman" >&2 && exit 2 ;;
esac
