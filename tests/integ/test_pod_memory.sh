#!/usr/bin/env bash
# A server in a pod (tests/deploy/pods) of overlays/dev with a memory limit, and a job whose tables are
# larger: it trains to its end, the server is not killed. Here 256 MiB and 282 MiB of rows; HEAVY=1 (make
# check) the 512 MiB of the manifest and 2 GiB of rows.
# ctest: RESOURCE_LOCK pods COST 15
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
. "$repo/tests/deploy/pods/needs.sh"
pods_or_skip

# Rows of the data, each with 26 ids of its own; a row of a table has 256 elements: 1 KiB.
if [ "${HEAVY:-0}" = 1 ]; then
  limit=512Mi samples=80700
else
  limit=256Mi samples=11100
fi
cp -r "$repo/deploy" "$work/deploy"
cat >"$work/deploy/k8s/workers/job/job.yaml" <<'X'
name: braid-train
workers: 2
servers: 1
model: {kind: dlrm, dim: 256, bottom: [256], top: [16]}
data: {format: criteo, train: /data/train.tsv}
train: {batch: 128, epochs: 1, optimizer: sgd, learning_rate: 0.05, checkpoint_at_end: false}
X
pods_job "$work" data
mkdir "$work/dev"
cat >"$work/dev/kustomization.yaml" <<X
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../deploy/k8s/overlays/dev]
patches:
  - target: {kind: StatefulSet, name: braid-ps}
    patch: |-
      - {op: replace, path: /spec/template/spec/containers/0/resources/limits/memory, value: $limit}
      - {op: replace, path: /spec/template/spec/volumes/1/emptyDir/sizeLimit, value: 20Gi}
X
sed -i 's/^namespace: .*/namespace: braid-dev/' "$work/job/kustomization.yaml"
"$kubectl" kustomize "$work/dev" >"$work/servers.yaml"
"$kubectl" kustomize "$work/job" >"$work/workers.yaml"
bash "$repo/deploy/image-root.sh" "$build" "$work/image" >"$out" 2>&1
chmod 755 "$work"
mkdir "$work/data"
awk -v n=$samples 'BEGIN {
  for (i = 0; i < n; i++) {
    line = i % 3 == 0 ? 1 : 0
    for (k = 0; k < 13; k++) line = line "\t" (i + k) % 50
    for (k = 0; k < 26; k++) line = line sprintf("\t%x", i + 1)
    print line
  }
}' >"$work/data/train.tsv"
"$python" "$repo/tests/deploy/pods/memory.py" --servers "$work/servers.yaml" --workers "$work/workers.yaml" \
  --image "$work/image" --work "$work/pods" --data "$work/data" --table-bytes $((samples * 26 * 1024))
