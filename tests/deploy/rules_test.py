#!/usr/bin/env python3
"""Writes the unit tests of deploy/monitoring/rules.yaml (promtool test rules DIR/*.test.yaml): each alert fires on the
series that show its trouble, and all stay silent on a healthy system.  rules_test.py RULES DIR
A trouble's test has a file of that rule alone: promtool evaluates every rule of a file every minute of three hours.
"""
import os
import sys

import yaml

PS = '{instance="ps-0"}'
WK = '{instance="w-0"}'


def hist(name, at, slow, step):
    """A histogram whose observations take `slow` seconds: below, and above in every bucket."""
    rows = []
    for le in ("0.1", "1", "3", "10", "+Inf"):
        counts = slow <= (float("inf") if le == "+Inf" else float(le))
        rows.append((f'{name}_bucket{{instance="{at}",le="{le}"}}', f"0+{step if counts else 0}x200"))
    return rows


# What a healthy system shows, for 3 hours; one sample a minute.
HEALTHY = dict([
    (f'braid_ps_rows{PS}', "1000+0x200"),
    (f'braid_ps_ready{PS}', "1+0x200"),
    (f'braid_ps_draining{PS}', "0+0x200"),
    (f'braid_ps_disk_errors_total{PS}', "0+0x200"),
    (f'braid_ps_disk_free_bytes{PS}', "70+0x200"),
    (f'braid_ps_disk_size_bytes{PS}', "100+0x200"),
    (f'braid_ps_journal_bytes{PS}', "90+0x200"),
    (f'braid_ps_journal_cap_bytes{PS}', "100+0x200"),
    (f'braid_ps_staged_bytes{PS}', "10+0x200"),
    (f'braid_ps_staged_limit_bytes{PS}', "100+0x200"),
    *hist("braid_ps_lookup_seconds", "ps-0", 0.01, 60),
    *hist("braid_ps_push_seconds", "ps-0", 0.01, 60),
    (f'process_start_time_seconds{PS}', "5+0x200"),
    (f'process_resident_memory_bytes{PS}', "1000+0x200"),
    (f'process_open_fds{PS}', "10+0x200"),
    (f'process_max_fds{PS}', "100+0x200"),
    ('braid_build_info{instance="ps-0",version="1",commit="a"}', "1+0x200"),
    ('braid_build_info{instance="w-0",version="1",commit="b"}', "1+0x200"),
    (f'braid_worker_world{WK}', "1+0x200"),
    (f'braid_worker_rank{WK}', "0+0x200"),
    (f'braid_worker_last_step_timestamp_seconds{WK}', "0+60x200"),
    (f'braid_worker_last_checkpoint_timestamp_seconds{WK}', "0+60x200"),
    (f'braid_worker_skipped_steps_total{WK}', "0+0x200"),
    (f'braid_worker_step_seconds_sum{WK}', "0+60x200"),
    (f'braid_worker_lookup_seconds_sum{WK}', "0+6x200"),
    (f'braid_worker_push_wait_seconds_sum{WK}', "0+6x200"),
    (f'braid_worker_commit_seconds_sum{WK}', "0+6x200"),
    (f'braid_worker_read_seconds_sum{WK}', "0+3x200"),
    ('braid_client_server_down{instance="w-0",server="ps-0"}', "0+0x200"),
    ('braid_client_outages_total{instance="w-0",server="ps-0"}', "0+0x200"),
])

# alert -> what is different when it must fire
TROUBLE = {
    "BraidServerRestarted": {f'process_start_time_seconds{PS}': "5+0x170 9000+0x29"},
    "BraidServerNotReady": {f'braid_ps_ready{PS}': "1+0x170 0+0x29"},
    "BraidServerDrainForgotten": {f'braid_ps_draining{PS}': "0+0x140 1+0x59", f'braid_ps_ready{PS}': "1+0x140 0+0x59"},
    "BraidDiskErrors": {f'braid_ps_disk_errors_total{PS}': "0+0x177 1+0x22"},
    "BraidDiskAlmostFull": {f'braid_ps_disk_free_bytes{PS}': "70+0x170 15+0x29"},
    "BraidJournalFull": {f'braid_ps_journal_bytes{PS}': "90+0x170 190+0x29"},
    "BraidStagingAlmostFull": {f'braid_ps_staged_bytes{PS}': "10+0x170 90+0x29"},
    "BraidLookupsSlow": dict(hist("braid_ps_lookup_seconds", "ps-0", 2, 60)),
    "BraidPushesSlow": dict(hist("braid_ps_push_seconds", "ps-0", 2, 60)),
    "BraidServerMemoryGrows": {f'process_resident_memory_bytes{PS}': "1000+10x200"},
    "BraidFileDescriptorsAlmostGone": {f'process_open_fds{PS}': "10+0x170 90+0x29"},
    "BraidVersionsDiffer": {'braid_build_info{instance="w-0",version="2",commit="b"}': "1+0x200"},
    "BraidServerUnreachable": {'braid_client_server_down{instance="w-0",server="ps-0"}': "0+0x170 1+0x29"},
    "BraidOutagesOften": {'braid_client_outages_total{instance="w-0",server="ps-0"}': "0+0x140 0+1x59"},
    "BraidNoStep": {f'braid_worker_last_step_timestamp_seconds{WK}': "0+60x150 9000+0x49"},
    "BraidLossNotFinite": {f'braid_worker_skipped_steps_total{WK}': "0+0x177 1+0x22"},
    "BraidCheckpointOld": {f'braid_worker_last_checkpoint_timestamp_seconds{WK}': "0+0x200"},
    "BraidServersHoldWorkersUp": {f'braid_worker_lookup_seconds_sum{WK}': "0+45x200"},
    "BraidReaderHoldsWorkersUp": {f'braid_worker_read_seconds_sum{WK}': "0+30x200"},
    "BraidWorkerMissing": {f'braid_worker_world{WK}': "2+0x200"},
}


def series(changes):
    rows = dict(HEALTHY)
    if any(k.startswith('braid_build_info{instance="w-0"') for k in changes):
        rows = {k: v for k, v in rows.items() if not k.startswith('braid_build_info{instance="w-0"')}
    rows.update(changes)
    return [{"series": k, "values": v} for k, v in rows.items()]


def write(path, content):
    with open(path, "w", encoding="utf-8") as f:
        yaml.safe_dump(content, f, width=200)


def write_test(path, rules, changes, expected):
    """promtool wants whole alerts; that one fires is one sample of the series ALERTS."""
    asked = [{"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', "eval_time": "180m",
              "exp_samples": [{"labels": "{}", "value": 1}] if fires else []} for alert, fires in expected.items()]
    write(path, {"rule_files": [os.path.abspath(rules)], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": series(changes), "promql_expr_test": asked}]})


def main():
    rules, folder = sys.argv[1:]
    with open(rules, encoding="utf-8") as f:
        alerts = [r for g in yaml.safe_load(f)["groups"] for r in g["rules"]]
    names = [a["alert"] for a in alerts]
    if sorted(names) != sorted(TROUBLE):
        sys.exit(f"alerts without a test, or the other way round: {sorted(set(names) ^ set(TROUBLE))}")
    os.makedirs(folder)
    for a in alerts:
        path = os.path.join(folder, a["alert"])
        write(f"{path}.yaml", {"groups": [{"name": "one", "rules": [a]}]})
        write_test(f"{path}.test.yaml", f"{path}.yaml", TROUBLE[a["alert"]], {a["alert"]: True})
    write_test(os.path.join(folder, "healthy.test.yaml"), rules, {}, {name: False for name in names})


main()
