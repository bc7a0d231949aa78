#!/usr/bin/env bash
# What braid-ps and braid-worker show on /metrics: names as Prometheus wants them; alert rules that fire
# when they should and only then; a dashboard that is fresh; no rule, panel or page of the operator's
# guide that names a metric nobody shows, and no metric that the guide leaves out.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
. "$repo/tests/deploy/tools.sh"
tool_or_skip promtool
python_with_yaml_or_skip
rules=$repo/deploy/monitoring/rules.yaml

page() { curl -sf "http://127.0.0.1:$1/metrics" >"$2"; }
ps_port=$(free_port) ps_page=$(free_port) wk_page=$(free_port)
"$bin/braid" datagen --rows 4000 --out "$work/c.tsv.gz" >/dev/null 2>&1
"$bin/braid-ps" --data-dir "$work/ps" --listen "127.0.0.1:$ps_port" --metrics-listen "127.0.0.1:$ps_page" 2>"$err" &
started+=($!)
ready() { curl -sf "http://127.0.0.1:$ps_page/healthz"; }
check "the server is ready" until_true 30 ready
"$bin/braid-worker" "$repo/tests/integ/small.yaml" --set data.generate.rows=0 --set data.generate.test_rows=0 \
  --set data.train="$work/c.tsv.gz" --set train.epochs=1000 --run-dir "$work/run" --coordinator "127.0.0.1:$ps_port" \
  --metrics-listen "127.0.0.1:$wk_page" >"$out" 2>>"$err" &
started+=($!)
trained() { page "$wk_page" "$work/wk.txt" && awk '$1 == "braid_worker_steps_total" { n = $2 } END { exit !(n > 20) }' "$work/wk.txt"; }
check "the worker trains" until_true 60 trained
seen() { page "$ps_page" "$work/ps.txt" && awk '$1 == "braid_ps_keys_total" { n = $2 } END { exit !(n > 0) }' "$work/ps.txt"; }
check "the server's page shows it" until_true 10 seen

lint() { "$promtool" check metrics <"$1"; }
check "promtool check metrics: server" lint "$work/ps.txt"
check "promtool check metrics: worker" lint "$work/wk.txt"
value() { awk -v n="$2" '$1 == n { print $2 }' "$1"; }
check "every step's time is observed" test "$(value "$work/wk.txt" braid_worker_step_seconds_count)" = "$(value "$work/wk.txt" braid_worker_steps_total)"
check "lookups are timed" test "$(value "$work/ps.txt" braid_ps_lookup_seconds_count)" -gt 20
check "the disk is seen" test "$(value "$work/ps.txt" braid_ps_disk_size_bytes | cut -d. -f1 | wc -c)" -gt 6
check "the server says it is ready" test "$(value "$work/ps.txt" braid_ps_ready)" = 1

# Names: the families of both pages, and what rules and dashboard may use of them.
families() { awk '$1 == "#" && $2 == "TYPE" { print $3, $4 }' "$work/ps.txt" "$work/wk.txt" | sort -u; }
families | awk '{ print $1 } $2 == "histogram" { print $1 "_bucket"; print $1 "_sum"; print $1 "_count" }' >"$work/known.txt"
named_in() { grep -oE '\b(braid|process)_[a-z0-9_]+' "$@" | sort -u; }
unknown() { named_in "$1" | grep -vxFf "$work/known.txt" || true; }
sed -n '/expr:/,/for:\|labels:/p' "$rules" >"$work/rule_exprs.txt"
python3 "$repo/deploy/monitoring/dashboard.py" --exprs >"$work/panel_exprs.txt"
check "rules name metrics that are shown" test -z "$(unknown "$work/rule_exprs.txt")"
check "panels name metrics that are shown" test -z "$(unknown "$work/panel_exprs.txt")"
echo "braid_ps_no_such_rows" >"$work/wrong.txt"
check "this test sees a wrong name" test "$(unknown "$work/wrong.txt")" = braid_ps_no_such_rows

# Rules and dashboard as Prometheus reads them.
check "promtool check rules" "$promtool" check rules "$rules"
rules_hold() { # RULES DIR
  "$python" "$repo/tests/deploy/rules_test.py" "$1" "$2" && "$promtool" test rules "$2"/*.test.yaml
}
n_failed_tests() { rules_hold "$1" "$2" 2>&1 | grep -c FAILED; }
check "every alert fires on its trouble, none on a healthy system" rules_hold "$rules" "$work/rules"
check "by so many tests" test "$(find "$work/rules" -name '*.test.yaml' | wc -l)" = $(($(grep -c 'alert:' "$rules") + 1))
sed 's/< 0.2$/< 0.1/' "$rules" >"$work/deaf.yaml"
check "a threshold that is too low is found" test "$(n_failed_tests "$work/deaf.yaml" "$work/deaf")" = 1
sed 's/< 0.2$/< 0.8/' "$rules" >"$work/nervous.yaml"
check "one that is too high, too" test "$(n_failed_tests "$work/nervous.yaml" "$work/nervous")" = 1
{
  echo "groups: [{name: panels, rules: ["
  while read -r expr; do
    printf '{record: a, expr: "%s"},\n' "${expr//\$__rate_interval/5m}"
  done <"$work/panel_exprs.txt" | awk '{ sub(/record: a/, "record: a" NR); print }'
  echo "]}]"
} >"$work/panels.yaml"
check "every panel's expression parses" "$promtool" check rules "$work/panels.yaml"
python3 "$repo/deploy/monitoring/dashboard.py" >"$work/dashboard.json"
check "dashboard.json is fresh (deploy/monitoring/dashboard.py)" cmp "$work/dashboard.json" "$repo/deploy/monitoring/dashboard.json"

# docs/OPERATIONS.md has an entry for every alert, and names every metric and every option of braid-ps.
guide=$repo/docs/OPERATIONS.md
guide_lacks() { while read -r word; do grep -qF -- "$word" "$guide" || echo "$word"; done; }
check "the guide names every metric" test -z "$(families | awk '{ print $1 }' | guide_lacks)"
check "the guide has an entry for every alert" test -z "$(grep -oE 'alert: .*' "$rules" | sed 's/alert: /### /' | guide_lacks)"
check "the guide names every option of braid-ps" test -z "$("$bin/braid-ps" --help | grep -oE '^  --[a-z0-9_]+' | sed 's/^ *--/`/; s/$/`/' | guide_lacks)"
worker_flags() { "$bin/braid-worker" --help | grep -oE '^  --[a-z0-9_.]+' | sed 's/^ *--/`/; s/$/`/'; }
in_guides() { while read -r word; do grep -qF -- "$word" "$guide" "$repo/docs/JOBS.md" || echo "$word"; done; }
check "guide and job reference name every option of braid-worker" test -z "$(worker_flags | in_guides)"
check "the guide names no metric that is not shown" test -z "$(unknown "$guide")"
check "this test sees a missing word" test "$(echo no_such_word_here | guide_lacks)" = no_such_word_here
finish
