#!/usr/bin/env bash
# README.md and docs/KUBERNETES.md, from `git clone` on: each command line, as written, in the order of the text, in
# what a clone holds. Lines that need a cluster are parsed by the real tool (which then finds no cluster) and what they
# name is looked up in the rendered manifests, which are checked strictly. A line that no rule below knows fails.
# A rule whose tool or data is missing says NOTICE and leaves its line out.
# ctest: COST 20
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
python_with_yaml_or_skip
[ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "what a guide's reader builds has no sanitizer"
kubectl=$(tool kubectl) helm=$(tool helm)

clone=$work/clone
mkdir -p "$clone/build"
(cd "$repo" && (git ls-files -z 2>/dev/null || true) | xargs -0r cp --parents -t "$clone" 2>/dev/null) || true
[ -f "$clone/README.md" ] || (cd "$repo" && cp -r Makefile README.md deploy docs examples tests "$clone")
ln -s "$bin" "$clone/build/bin"
[ ! -d "$repo/../shared/data" ] || ln -s "$(cd "$repo/../shared" && pwd)" "$work/shared"
rendered=$work/rendered.yaml # everything that the guide has made so far
: >"$rendered"
image=

cat >"$work/nowhere" <<'X'
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
X
export KUBECONFIG=$work/nowhere HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

guide() { "$python" "$repo/tests/deploy/guide.py" "$@"; }
k8s_check() { "$python" "$repo/tests/deploy/k8s_check.py" --bin "$bin" "$@"; }
notice() { echo "NOTICE: not run: $1 ($2)"; }
typed() { # COMMAND: typed into a shell in the clone
  (cd "$clone" && PATH=$work/path:$PATH exec timeout -k 5 120 bash -c "$1") >"$out" 2>"$err"
}
# The tool understands the line, and gets as far as asking for the cluster.
parses() {
  if typed "$1"; then return 0; fi
  grep -qE 'connection refused|was refused' "$err" || { cat "$err"; return 1; }
}
mkdir "$work/path"
[ -z "$kubectl" ] || ln -s "$kubectl" "$work/path/kubectl"
[ -z "$helm" ] || ln -s "$helm" "$work/path/helm"

# ---- kubectl and helm ----
render() { # DIR: adds it to what was made; its images are those that were pushed
  (cd "$clone" && kubectl kustomize "$1") >"$work/dir.yaml" && k8s_check "$work/dir.yaml" && made "$work/dir.yaml"
}
made() {
  local strange
  strange=$(grep -oE '\bimage: .*' "$1" | sed 's/image: *"\?//; s/"$//' | grep -vxF "$image" | sort -u)
  [ -z "$strange" ] || { echo "image $strange, but $image was pushed"; return 1; }
  { echo ---; cat "$1"; } >>"$rendered"
}
last_dir() { sed -E 's/.* -k //; s/ .*//' <<<"$1"; }
rule_render() { typed "$1" && [ -s "$out" ]; }
rule_apply() { parses "$1" && PATH=$work/path:$PATH render "$(last_dir "$1")"; }
rule_create() { # without a cluster it can be made, if not put there
  parses "$1" && typed "$1 --dry-run=client -o yaml" && cp "$out" "$work/created.yaml" &&
    guide target "$rendered" -- "$(sed -E 's/ create .*//' <<<"$1") get x" && made "$work/created.yaml"
}
rule_target() { parses "$1" && guide target "$rendered" -- "$1"; }
rule_exec() { # and the program takes the options
  rule_target "$1" || return 1
  local inside=${1#* -- }
  if [ -n "$address" ]; then
    typed "env $environment $bin/$(sed "s:^/usr/bin/::; s/braid-coordinator:7000/$coordinator/" <<<"$inside")" &&
      [ "$(grep -c "$address:" "$out")" = 3 ]
  fi
}
# Three servers as the manifests start them, but for ports and folders, on an address that is not the loopback.
address=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 '\.' || true)
environment=$(grep -vE '_(LISTEN|DIR|WAIT)=' "$repo/deploy/k8s/base/ps.env" | tr '\n' ' ')
three_servers() {
  local i
  for i in 0 1 2; do
    env $environment BRAID_INDEX=$i BRAID_DATA_DIR="$work/ps-$i" BRAID_LISTEN=0.0.0.0:0 BRAID_ADVERTISE="$address" \
      BRAID_COORDINATOR="${coordinator:-}" "$bin/braid-ps" --ready-fd 3 3>"$work/ps-$i.ready" 2>"$work/ps-$i.log" &
    server_pids[i]=$!
    started+=($!)
    until_true 30 grep -q READY "$work/ps-$i.ready" || { tail -3 "$work/ps-$i.log"; return 1; }
    [ $i != 0 ] || coordinator=$(sed -n 's/^READY //p' "$work/ps-0.ready")
  done
}
coordinator= server_pids=()
if [ -n "$address" ]; then
  check "three servers start as the manifests say" three_servers
else
  echo "NOTICE: this machine has no address but the loopback's"
fi
rule_install() {
  parses "$1" && typed "$1 --dry-run=client" && typed "${1/helm install/helm template}" && cp "$out" "$work/chart.yaml" &&
    made "$work/chart.yaml" && k8s_check "$work/chart.yaml"
}
rule_helm_test() { parses "$1" && grep -q 'helm.sh/hook: test' "$work/chart.yaml"; }

# ---- the image ----
rule_build() { # what the file copies is in a clone; tests/integ/test_container.sh builds and runs it
  local words=($1) i
  for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
    -f) [ -f "$clone/${words[i + 1]}" ] || return 1 ;;
    -t) image=${words[i + 1]} ;;
    esac
  done
  [ "${words[-1]}" = . ] && [ -n "$image" ] || return 1
}
rule_push() { [ "${1##* }" = "$image" ]; }

# ---- programs of this build ----
rule_shell() { typed "$1"; }
rule_make() { typed "${1/make /make -n }" && [ -s "$out" ]; }
rule_demo() { # test_demo.sh runs what it says
  rule_make "$1" && local line && line=$(grep -oE 'bin/braid run .*' "$out") &&
    grep -qF "braid run \"\$repo/${line#bin/braid run }" <(sed 's:\("\$repo/[^"]*\)":\1:' "$repo/tests/integ/test_demo.sh")
}
rule_braid() { typed "$1"; }
rule_train() { # and while it runs its servers answer
  (cd "$clone" && exec timeout -k 5 120 bash -c "$1") >"$work/train.txt" 2>"$work/train.err" &
  local pid=$! status=0
  started+=("$pid")
  until_true 60 typed "build/bin/braid ps status --run-dir runs/adult/latest" || status=1
  wait "$pid" || { tail -5 "$work/train.err"; return 1; }
  grep -q '^RESULT ' "$work/train.txt" || return 1
  [ $status = 0 ] || { echo "its servers never answered"; return 1; }
}
rule_ps_status() { [ "$1" = "build/bin/braid ps status --run-dir runs/adult/latest" ]; } # rule_train did
rule_launch() { # both hosts of it on this one
  local here=${1/host0:29400/127.0.0.1:$(free_port)} first
  echo 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])' >"$clone/train.py"
  (cd "$clone" && exec timeout -k 5 60 bash -c "$here") >"$work/first.txt" 2>&1 &
  first=$!
  started+=("$first")
  typed "$here" && wait "$first" && cat "$out" "$work/first.txt" | grep -c 'rank [01] of 2' | grep -qx 2
}
rule_predict() {
  zcat "$work/shared/data/adult/adult.test.gz" | grep -v '^|' | head -50 >"$clone/rows.csv"
  typed "$1" && [ "$(wc -l <"$clone/scores.txt")" = 50 ]
}
rule_datagen() { typed "${1/--rows 10m/--rows 10k}" && [ "$(zcat "$clone/clicks.tsv.gz" | wc -l)" = 10000 ]; }

rule_of() { # COMMAND -> the rule that proves it
  local verb=
  verb=$(sed -E 's/^kubectl( -n [a-z]+)? ([a-z]+).*/\2/; q' <<<"$1")
  case $1 in
  "kubectl "*)
    case $verb in
    kustomize) echo render ;;
    apply | delete) case $1 in *" -k "*) echo apply ;; *" pvc "*) echo target ;; *) return 1 ;; esac ;;
    create) echo create ;;
    rollout | logs | label) echo target ;;
    exec) echo exec ;;
    *) return 1 ;;
    esac
    ;;
  "helm install "*) echo install ;;
  "helm test "*) echo helm_test ;;
  "podman build "*) echo build ;;
  "podman push "*) echo push ;;
  "mkdir -p my"* | "sed -i "*" my"*) echo shell ;;
  "make demo") echo demo ;;
  "make "*) echo make ;;
  "source <("*) echo shell ;;
  "build/bin/braid run "*--workers*) echo train ;;
  "build/bin/braid ps status "*) echo ps_status ;;
  "build/bin/braid launch "*) echo launch ;;
  "build/bin/braid predict "*) echo predict ;;
  "build/bin/braid datagen "*) echo datagen ;;
  "build/bin/braid "*) echo braid ;;
  *) return 1 ;;
  esac
}
missing() { # RULE COMMAND -> what it would need, or nothing
  case $1 in
  render | apply | create | target | exec) [ -n "$kubectl" ] || echo "no kubectl" ;;
  install | helm_test) [ -n "$helm" ] && [ -n "$kubectl" ] || echo "no helm" ;;
  train | predict | braid) [ -d "$work/shared/data/adult" ] || echo "no ../shared/data/adult" ;;
  launch) command -v python3 >/dev/null || echo "no python3" ;;
  esac
}
proves() { # COMMAND
  local rule why
  rule=$(rule_of "$1") || { echo "no rule for: $1"; return 1; }
  why=$(missing "$rule" "$1")
  if [ -n "$why" ]; then
    notice "$1" "$why" >>"$work/notices.txt"
    return 0
  fi
  "rule_$rule" "$1"
}
follow() { # FILE
  local command n=0
  while IFS= read -r -d '' command; do
    n=$((n + 1))
    check "$(basename "$1"): ${command%%$'\n'*}" proves "$command"
  done < <(guide commands "$1")
  [ $n -ge 10 ] || check "$(basename "$1") has commands" false
}

: >"$work/notices.txt"
mkdir -p "$clone/certs" # as docs/OPERATIONS.md makes them; test_tls.sh runs those lines
for name in tokens admin.token train.token; do echo "x train 0123456789abcdef" >"$clone/certs/$name"; done
follow "$repo/docs/KUBERNETES.md"
if [ -n "$kubectl" ]; then
  check "the guide ends with three servers" grep -qE '^  replicas: 3$' "$rendered"
fi

# Planted lines.
fails() { ! proves "$1"; }
check "an unknown line is seen" fails "kubectl frobnicate all"
check "so is another program" fails "curl http://braid"
planted() { printf '```sh\nkubectl frobnicate \\\n  all  # x\n```\nand `helm\nfoo x`\n' >"$work/planted.md" && [ "$(guide commands "$work/planted.md" | tr '\0' ';')" = "kubectl frobnicate all;helm foo x;" ]; }
check "both are taken out of a guide" planted
if [ -n "$address" ]; then
  echo 0123456789abcdef0123456789abcdef >"$work/token"
  refused() { ! typed "$1"; }
  check "a token does not go there in plain text" refused "build/bin/braid ps status --coordinator $coordinator --token-file $work/token"
  check "and that is said" err_says "a token is not sent in plain text"
fi
check "an image that was not built" fails "podman push registry.example/braid:0.2.0"
check "a wrong option" fails "build/bin/braid ckpt list --run-dri runs"
if [ -n "$kubectl" ]; then
  for wrong in "kubectl apply -k nowhere" "kubectl -n braid apply -k deploy/k8s/workers/jobset" "kubectl -n braid rollout stat statefulset/braid-ps" \
    "kubectl -n braid rollout status statefulset/braid-pz" "kubectl -n brade rollout status statefulset/braid-ps" \
    "kubectl -n braid logs -l app.kubernetes.io/component=workers -c worker" \
    "kubectl -n braid logs -l app.kubernetes.io/component=worker -c work" "kubectl -n braid delete pvc -l a=b" \
    "kubectl -n braid exec statefulset/braid-ps -c ps -- /bin/sh" \
    "kubectl -n braid exec statefulset/braid-ps -c ps -- /usr/bin/braid ps status --coordinatr braid-coordinator:7000" \
    "kubectl -n braid exec statefulset/braid-ps -c ps -- /usr/bin/braid ps status --coordinator braid:7000" \
    "kubectl -n monitoring create configmap x --from-file=deploy/none.json"; do
    check "is seen: $wrong" fails "$wrong"
  done
fi

follow "$repo/README.md"
cat "$work/notices.txt"
finish
