#!/usr/bin/env bash
# Prometheus scrapes a running cluster - two servers, one worker - with the rules of deploy/monitoring: all
# targets are up, series grow, every panel's expression is answered, a restarted server fires its alert.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
tool_or_skip prometheus
python_with_yaml_or_skip

for _ in 0 1 2 3 4 5; do ports+=("$(free_port)"); done
at() { echo "127.0.0.1:${ports[$1]}"; } # 0, 1: gRPC; 2, 3: their pages; 4: the worker's page; 5: Prometheus

declare -A ps
start_ps() { # INDEX
  "$bin/braid-ps" --index "$1" --servers 2 --data-dir "$work/ps-$1" --listen "$(at "$1")" --coordinator "$(at 0)" \
    --metrics-listen "$(at $(($1 + 2)))" 2>>"$work/ps-$1.log" &
  ps[$1]=$!
  started+=($!)
}
ready() { curl -sf "http://$(at $(($1 + 2)))/healthz"; }
start_ps 0
start_ps 1
for i in 0 1; do check "server $i is ready" until_true 30 ready $i; done
"$bin/braid" datagen --rows 6000 --out "$work/c.tsv.gz" >/dev/null 2>&1
"$bin/braid-worker" "$repo/tests/integ/small.yaml" --set data.generate.rows=0 --set data.generate.test_rows=0 \
  --set data.train="$work/c.tsv.gz" --set train.epochs=100000 --run-dir "$work/run" --coordinator "$(at 0)" \
  --metrics-listen "$(at 4)" >"$out" 2>"$err" &
started+=($!)

cat >"$work/prometheus.yaml" <<X
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: ["$repo/deploy/monitoring/rules.yaml"]
scrape_configs:
  - job_name: braid-ps
    static_configs: [{targets: ["$(at 2)", "$(at 3)"]}]
  - job_name: braid-worker
    static_configs: [{targets: ["$(at 4)"]}]
X
"$prometheus" --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/tsdb" --log.level=warn \
  --web.listen-address="$(at 5)" >"$work/prometheus.log" 2>&1 &
started+=($!)

# value EXPR: the value of its first series; asks EXPR VALUE: is it that?
value() {
  curl -sf "http://$(at 5)/api/v1/query" --data-urlencode "query=$1" | "$python" -c '
import json, sys
found = json.load(sys.stdin)["data"]["result"]
print(found[0]["value"][1] if found else "")'
}
asks() { [ "$(value "$1")" = "$2" ]; }
check "Prometheus scrapes both servers and the worker" until_true 60 asks 'sum(up)' 3
check "rows are on both servers" until_true 20 asks 'count(braid_ps_rows > 0)' 2
check "both servers are ready" asks 'sum(braid_ps_ready)' 2
check "steps are counted, and grow" until_true 30 asks 'increase(braid_worker_steps_total[5s]) > bool 0' 1
check "lookups have quantiles" until_true 20 asks \
  'count(histogram_quantile(0.99, sum by (instance, le) (rate(braid_ps_lookup_seconds_bucket[10s]))) > 0)' 2
check "calls are told by method and code" until_true 10 asks \
  'count(sum by (method) (braid_rpc_server_calls_total{code="OK"})) > bool 1' 1
check "the worker has lost no server" asks 'sum(braid_client_server_down)' 0

rules_healthy() { # every rule is evaluated without an error
  curl -sf "http://$(at 5)/api/v1/rules" | "$python" -c '
import json, sys
rules = [r for g in json.load(sys.stdin)["data"]["groups"] for r in g["rules"]]
bad = [r["name"] for r in rules if r["health"] != "ok"]
sys.exit(f"{len(rules)} rules, not healthy: {bad}" if bad or len(rules) != int(sys.argv[1]) else 0)' \
    "$(grep -c 'alert:' "$repo/deploy/monitoring/rules.yaml")"
}
check "every rule is evaluated" until_true 20 rules_healthy
panels_answered() {
  python3 "$repo/deploy/monitoring/dashboard.py" --exprs | sed 's/\$__rate_interval/10s/g' | "$python" -c '
import json, sys, urllib.parse, urllib.request
empty = []
for expr in sys.stdin.read().splitlines():
    url = "http://" + sys.argv[1] + "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(url) as reply:
        if not json.load(reply)["data"]["result"]:
            empty.append(expr)
sys.exit("no series for: " + "; ".join(empty) if empty else 0)' "$(at 5)"
}
check "every panel has series" until_true 30 panels_answered

fires() { asks "count(ALERTS{alertname=\"$1\", alertstate=\"firing\"})" 1; }
check "no server has restarted" asks 'absent(ALERTS{alertname="BraidServerRestarted"})' 1
kill -TERM "${ps[1]}"
wait "${ps[1]}" || true
start_ps 1
check "it comes back" until_true 30 ready 1
check "a restarted server fires its alert" until_true 30 fires BraidServerRestarted
check "and the worker has counted the outage" until_true 20 asks 'sum(braid_client_outages_total) > bool 0' 1
finish
