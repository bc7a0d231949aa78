#!/usr/bin/env bash
# deploy/k8s rendered and checked strictly: fields, types, conventions, names of options. Needs kubectl
# (kustomize inside) and a python with PyYAML; tests/deploy/install-tools.sh brings what is missing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
tool_or_skip kubectl
python_with_yaml_or_skip

render() { "$kubectl" kustomize "$repo/deploy/k8s/$1" >"$work/$(echo "$1" | tr / -).yaml"; }
k8s_check() { "$python" "$repo/tests/deploy/k8s_check.py" --bin "$bin" "$@"; }

for dir in overlays/dev overlays/prod overlays/secure overlays/gpu workers/jobset workers/trainjob \
  workers/jobset-secure workers/trainjob-secure; do
  check "deploy/k8s/$dir renders" render "$dir"
done
check "no problem in any manifest" k8s_check "$work"/*-*.yaml
grep -q NOTICE "$work/check.txt" && grep NOTICE "$work/check.txt"
check "planted mistakes are found" k8s_check --self-test "$work"/*-*.yaml
sed 's/^/  /' "$work/check.txt"

# A change of the configuration changes the ConfigMap's name, so it rolls the pods.
config_name() { grep -oE 'braid-ps-config-[a-z0-9]+' "$1" | sort -u; }
cp -r "$repo/deploy/k8s" "$work/k8s"
sed -i 's/^BRAID_JOURNAL_CAP=.*/BRAID_JOURNAL_CAP=256MiB/' "$work/k8s/base/ps.env"
"$kubectl" kustomize "$work/k8s/overlays/prod" >"$work/changed.yaml"
check "one name of the configuration in it" test "$(config_name "$work/changed.yaml" | wc -l)" = 1
check "a changed option rolls the pods" test "$(config_name "$work/changed.yaml")" != "$(config_name "$work/overlays-prod.yaml")"

# State in etcd, in an overlay over prod, with the endpoints of one's own.
mkdir "$work/k8s/overlays/mine"
cat >"$work/k8s/overlays/mine/kustomization.yaml" <<'X'
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: braid
resources: [../prod]
components: [../../components/etcd]
configMapGenerator:
  - {name: braid-ps-config, behavior: merge, literals: ["BRAID_STORE=etcd://a:2379,b:2379/x", BRAID_ETCD_USER=braid, BRAID_ETCD_PASSWORD_FILE=/etc/braid/etcd/password]}
X
mine() { "$kubectl" kustomize "$work/k8s/overlays/mine" >"$work/mine.yaml" && k8s_check "$work/mine.yaml"; }
check "components/etcd renders" mine
etcd_is_reached() { grep -q 'BRAID_STORE: etcd://a:2379,b:2379/x' "$work/mine.yaml" && grep -q "port: 2379$" "$work/mine.yaml" && grep -q 'secretName: braid-ps-etcd' "$work/mine.yaml"; }
check "its servers reach etcd" etcd_is_reached
check "nobody else names it" test "$(grep -c 2379 "$work/overlays-prod.yaml")" = 0

paths_exist() { (cd "$repo" && for path in $(grep -ohE '\bdeploy/[a-zA-Z0-9_./-]+' docs/KUBERNETES.md docs/OPERATIONS.md | sed 's/[.]$//' | sort -u); do [ -e "$path" ] || { echo "no $path"; return 1; }; done); }
check "every path that the guides name exists" paths_exist

# The worker reads the job and the variables as the manifest gives them.
"$python" - "$work/workers-jobset.yaml" "$work" <<'P'
import shlex, sys, yaml
docs = [d for d in yaml.safe_load_all(open(sys.argv[1])) if d]
open(sys.argv[2] + "/job.yaml", "w").write(next(d for d in docs if d["kind"] == "ConfigMap")["data"]["job.yaml"])
pod = next(d for d in docs if d["kind"] == "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
with open(sys.argv[2] + "/pod.env", "w") as f:
    for e in pod["spec"]["containers"][0]["env"]:
        f.write("export %s=%s\n" % (e["name"], shlex.quote(e.get("value", "10.0.0.7"))))
P
worker_config() { # RANK
  (. "$work/pod.env" && JOB_COMPLETION_INDEX=$1 "$bin/braid-worker" "$work/job.yaml" --print-config text)
}
says() { worker_config "$1" >"$work/config.txt" && grep -qE "$2" "$work/config.txt"; }
check "rank from the completion index" says 1 '^rank: 1 .*JOB_COMPLETION_INDEX'
check "world from BRAID_WORLD" says 1 '^world: 2 .*BRAID_WORLD'
check "the coordinator's name" says 0 '^coordinator: "?braid-coordinator:7000'
check "an index beyond the world is refused" test "$(worker_config 2 2>&1 | grep -c 'rank: 2 is not below world 2')" = 1
finish
