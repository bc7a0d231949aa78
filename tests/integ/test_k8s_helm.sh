#!/usr/bin/env bash
# The chart: linted, rendered in all its variants and checked strictly, the same StatefulSet as
# kustomize's, wrong values refused by the schema.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid-ps
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
tool_or_skip helm
tool_or_skip kubectl
python_with_yaml_or_skip
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm
chart=$repo/deploy/helm/braid-ps

template() { # FILE ARGS...
  local file=$1
  shift
  "$helm" template braid "$chart" --kube-version 1.30.0 "$@" >"$work/$file"
}
k8s_check() { "$python" "$repo/tests/deploy/k8s_check.py" --bin "$bin" "$@"; }
refused() { # WHAT ARGS...
  local what=$1
  shift
  if "$helm" template braid "$chart" "$@" >/dev/null 2>"$work/refused.txt"; then return 1; fi
  grep -q -- "$what" "$work/refused.txt" || { cat "$work/refused.txt"; return 1; }
}

check "helm lint --strict" "$helm" lint --strict "$chart"
check "default values" template default.yaml
check "everything on" template full.yaml --set serviceMonitor.enabled=true --set networkPolicy.enabled=true \
  --set serviceMonitor.labels.release=prom --set priorityClassName=braid-ps --set nodeSelector.disk=nvme \
  --set-json 'tolerations=[{"key":"ps","operator":"Exists"}]' --set-json 'imagePullSecrets=[{"name":"registry"}]' \
  --set podAnnotations.team=ads --set persistence.storageClassName=fast
check "one server without a volume" template small.yaml --set servers=1 --set persistence.enabled=false --set persistence.size=2Gi
check "other ports" template ports.yaml --set ports.grpc=17000 --set ports.health=17001 --set ports.metrics=19100
check "TLS and tokens" template tls.yaml --set tls.secretName=my-tls --set tls.clientAuth=require --set tokensSecret=my-tokens
check "TLS takes allow_insecure away" test "$(grep -c ALLOW_INSECURE "$work/tls.yaml")" = 0
mounts_both() { # KIND: its pod mounts the certificates and the tokens
  awk -v kind="$1" '/^---/ { of = "" } /^kind:/ { of = $2 } of == kind && /secretName: my-/' "$work/tls.yaml" >"$work/mounts.txt"
  [ "$(grep -c 'secretName: my-tls,' "$work/mounts.txt")" = 1 ] && [ "$(grep -c 'secretName: my-tokens,' "$work/mounts.txt")" = 1 ]
}
check "the servers mount both Secrets" mounts_both StatefulSet
check "and so does the status test" mounts_both Pod
check "state in etcd" template etcd.yaml --set etcd.store=etcd://a:2379\\,b:2379/x --set etcd.secretName=my-etcd --set networkPolicy.enabled=true
etcd_is_reached() { grep -q 'BRAID_STORE: "etcd://a:2379,b:2379/x"' "$work/etcd.yaml" && grep -q 'BRAID_ETCD_KEY: /etc/braid/etcd/tls.key' "$work/etcd.yaml" && grep -q 'port: 2379' "$work/etcd.yaml" && grep -q 'secretName: my-etcd,' "$work/etcd.yaml"; }
check "which servers reach, by its certificate" etcd_is_reached
check "or as a user" template user.yaml --set etcd.store=etcd://a:2379 --set etcd.secretName=my-etcd --set etcd.user=braid
check "with a password" test "$(grep -cE 'BRAID_ETCD_(USER: "braid"|PASSWORD_FILE: /etc/braid/etcd/password)' "$work/user.yaml")" = 2
check "no etcd by default" test "$(grep -cE '2379|ETCD|/etcd' "$work/full.yaml")" = 0
check "no problem in any of them" k8s_check "$work"/{default,full,small,ports,tls,etcd,user}.yaml
check "planted mistakes are found" k8s_check --self-test "$work/full.yaml"
sed 's/^/  /' "$work/check.txt"

check "with a priority class" template prod.yaml --set priorityClassName=braid-ps
"$kubectl" kustomize "$repo/deploy/k8s/overlays/prod" >"$work/kustomized.yaml"
same() { "$python" "$repo/tests/deploy/same_statefulset.py" "$@"; }
check "helm and kustomize render the same servers" same "$work/kustomized.yaml" "$work/prod.yaml"
template other.yaml --set priorityClassName=braid-ps --set terminationGracePeriodSeconds=121
check "this comparison sees a difference" test "$(same "$work/kustomized.yaml" "$work/other.yaml" | grep -c terminationGracePeriodSeconds)" = 1

checksum() { grep -o 'checksum/config: .*' "$1"; }
template changed.yaml --set config.journal_cap=256MiB
check "a changed option rolls the pods" test "$(checksum "$work/changed.yaml")" != "$(checksum "$work/default.yaml")"
template same.yaml --set persistence.size=200Gi
check "another value does not" test "$(checksum "$work/same.yaml")" = "$(checksum "$work/default.yaml")"

check "an unknown value is refused" refused serverz --set serverz=3
check "no server is refused" refused servers --set servers=0
check "a short grace period is refused" refused terminationGracePeriodSeconds --set terminationGracePeriodSeconds=5
check "the tag latest is refused" refused tag --set image.tag=latest
check "options that the chart sets are refused" refused listen --set config.listen=0.0.0.0:1
check "a user in etcd's address is refused" refused store --set etcd.store=etcd://me:secret@a:2379
check "a user of etcd without a Secret" refused secretName --set etcd.store=etcd://a:2379 --set etcd.user=braid
check "an old Kubernetes is refused" refused 1.30 --kube-version 1.29.0
finish
