# Sourced after tests/integ/lib.sh and tests/deploy/tools.sh: what the tests of pods need, and share.

pods_or_skip() { # sets $kubectl and $python
  tool_or_skip kubectl
  python_with_yaml_or_skip
  [ "$(id -u)" = 0 ] || skip "network namespaces need root"
  [ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "a sanitized build is no image"
  local program probe=brpr$$
  for program in ip tc nsenter unshare setpriv chroot; do
    command -v $program >/dev/null || skip "$program is not installed"
  done
  ip netns add $probe 2>/dev/null || skip "this machine makes no network namespaces"
  ip netns del $probe
  { ip link add $probe type bridge && ip link del $probe; } 2>/dev/null || skip "this machine makes no bridges"
}

# The guide's way to a job of one's own, in DIR/job: a copy of deploy/k8s/workers (DIR/deploy, its job.yaml
# already changed) whose data lie in a claim.
pods_job() { # DIR CLAIM
  mkdir "$1/job"
  cat >"$1/job/kustomization.yaml" <<X
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: braid
resources: [../deploy/k8s/workers/jobset]
patches:
  - target: {kind: JobSet, name: braid-train}
    patch: |-
      - op: remove
        path: /spec/replicatedJobs/0/template/spec/template/spec/initContainers
      - op: replace
        path: /spec/replicatedJobs/0/template/spec/template/spec/volumes/1
        value: {name: data, persistentVolumeClaim: {claimName: $2}}
X
}
