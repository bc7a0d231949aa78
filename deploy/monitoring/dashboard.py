#!/usr/bin/env python3
"""The Grafana dashboard, made of one table: dashboard.py > dashboard.json

dashboard.json is committed; a test checks that it is what this prints and that every expression names
metrics that braid-ps and braid-worker really show.  --exprs prints the expressions, one a line.
"""
import json
import sys

I = "$__rate_interval"


def quantile(q, metric):
    return f"histogram_quantile({q}, sum by (instance, le) (rate({metric}_bucket[{I}])))"


def rate(metric, by="instance"):
    return f"sum by ({by}) (rate({metric}[{I}]))"


def share(phase):
    return f"sum(rate(braid_worker_{phase}_seconds_sum[{I}])) / sum(rate(braid_worker_step_seconds_sum[{I}]))"


PHASES = ["read", "lookup", "forward", "backward", "allreduce_wait", "push_wait", "flags", "optimizer", "commit"]

# row title -> panels (title, unit, [(expression, legend)])
ROWS = [
    ("Training", [
        ("Samples per second", "short", [("max(rate(braid_worker_samples_total[%s]))" % I, "samples")]),
        ("Loss", "none", [("max(braid_worker_loss)", "loss"), ("max(braid_worker_eval_logloss)", "log loss (evaluation)")]),
        ("AUC of the last evaluation", "none", [("max(braid_worker_eval_auc)", "AUC")]),
        ("Progress", "percentunit", [("max(braid_worker_last_step) / max(braid_worker_planned_steps)", "steps done")]),
        ("Time of a step, p50 and p99", "s", [(quantile(0.5, "braid_worker_step_seconds"), "p50 {{instance}}"),
                                              (quantile(0.99, "braid_worker_step_seconds"), "p99 {{instance}}")]),
        ("Where the time goes", "percentunit", [(share(p), p.replace("_", " ")) for p in PHASES]),
        ("Ring", "Bps", [(rate("braid_worker_ring_sent_bytes_total"), "sent by {{instance}}")]),
        ("Age of the last checkpoint", "s", [("time() - max(braid_worker_last_checkpoint_timestamp_seconds)", "age")]),
        ("Servers that do not answer", "none", [("max by (server) (braid_client_server_down)", "{{server}}")]),
        ("Outages", "s", [("sum by (server) (increase(braid_client_outage_seconds_total[%s]))" % I, "{{server}}")]),
        ("Requests sent again", "short", [("sum by (server, reason) (rate(braid_client_retries_total[%s]))" % I,
                                           "{{server}} {{reason}}")]),
        ("Skipped steps", "short", [("max(increase(braid_worker_skipped_steps_total[%s]))" % I, "skipped")]),
    ]),
    ("Servers: work", [
        ("Ready", "none", [("braid_ps_ready", "{{instance}}")]),
        ("Draining", "none", [("braid_ps_draining", "{{instance}}")]),
        ("Keys looked up", "short", [(rate("braid_ps_lookup_keys_total"), "{{instance}}")]),
        ("Keys updated", "short", [(rate("braid_ps_keys_total"), "{{instance}}")]),
        ("Lookups", "s", [(quantile(0.5, "braid_ps_lookup_seconds"), "p50 {{instance}}"),
                          (quantile(0.99, "braid_ps_lookup_seconds"), "p99 {{instance}}")]),
        ("Pushes", "s", [(quantile(0.5, "braid_ps_push_seconds"), "p50 {{instance}}"),
                         (quantile(0.99, "braid_ps_push_seconds"), "p99 {{instance}}")]),
        ("Commits", "s", [(quantile(0.99, "braid_ps_commit_seconds"), "p99 {{instance}}")]),
        ("Steps and async pushes", "short", [(rate("braid_ps_steps_total"), "steps {{instance}}"),
                                             (rate("braid_ps_pushes_total"), "pushes {{instance}}"),
                                             (rate("braid_ps_aborts_total"), "aborts {{instance}}")]),
        ("Failed and repeated requests", "short", [(rate("braid_ps_failed_requests_total"), "failed {{instance}}"),
                                                   (rate("braid_ps_duplicates_total"), "repeated {{instance}}")]),
        ("Requests that wait for a step", "short", [("braid_ps_parked_requests", "{{instance}}")]),
    ]),
    ("Servers: rows and disk", [
        ("Rows", "short", [("braid_ps_rows", "{{instance}}")]),
        ("Tables", "short", [("max(braid_ps_tables)", "tables")]),
        ("Journal and its cap", "bytes", [("braid_ps_journal_bytes", "{{instance}}"),
                                          ("max(braid_ps_journal_cap_bytes)", "cap")]),
        ("Records a restart replays", "short", [("braid_ps_journal_records", "{{instance}}")]),
        ("Changed rows not yet on disk", "bytes", [("braid_ps_dirty_bytes", "{{instance}}")]),
        ("Staged gradients", "bytes", [("braid_ps_staged_bytes", "{{instance}}"),
                                       ("max(braid_ps_staged_limit_bytes)", "limit")]),
        ("Rows written back", "short", [(rate("braid_ps_rows_written_total"), "{{instance}}"),
                                        (rate("braid_ps_write_backs_total"), "write-backs {{instance}}")]),
        ("Disk used", "percentunit", [("1 - braid_ps_disk_free_bytes / braid_ps_disk_size_bytes", "{{instance}}")]),
        ("Disk errors, checkpoints", "short", [("increase(braid_ps_disk_errors_total[%s])" % I, "errors {{instance}}"),
                                               ("increase(braid_ps_checkpoints_total[%s])" % I, "checkpoints {{instance}}")]),
        ("Last start", "s", [("braid_ps_recovery_seconds", "rows and replay {{instance}}")]),
        ("Starts and replayed records", "short", [("braid_ps_generation", "starts {{instance}}"),
                                                  ("braid_ps_replayed_records", "records {{instance}}")]),
        ("Job and step", "none", [("max(braid_ps_job_epoch)", "job epoch"), ("braid_ps_last_step", "step {{instance}}")]),
    ]),
    ("Processes", [
        ("Memory", "bytes", [("process_resident_memory_bytes and on (instance) braid_build_info", "{{instance}}")]),
        ("Processor", "short", [("rate(process_cpu_seconds_total[%s]) and on (instance) braid_build_info" % I, "{{instance}}")]),
        ("File descriptors", "percentunit", [("process_open_fds / process_max_fds and on (instance) braid_build_info", "{{instance}}")]),
        ("Up since", "dateTimeAsIso", [("1000 * process_start_time_seconds and on (instance) braid_build_info", "{{instance}}")]),
        ("Versions", "none", [("count by (version, commit) (braid_build_info)", "{{version}} {{commit}}")]),
        ("Workers", "none", [("count(braid_worker_rank)", "scraped"), ("max(braid_worker_world)", "of the job")]),
    ]),
]
WIDTH, HEIGHT, PER_ROW = 8, 7, 3


def panel(number, title, unit, targets, x, y):
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number, "type": "timeseries", "title": title, "datasource": source,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, "datasource": source}
                    for i, (expr, legend) in enumerate(targets)],
    }


def dashboard():
    panels, y = [], 0
    for title, items in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        y += 1
        for i, (name, unit, targets) in enumerate(items):
            panels.append(panel(len(panels) + 1, name, unit, targets, WIDTH * (i % PER_ROW), y + HEIGHT * (i // PER_ROW)))
        y += HEIGHT * ((len(items) + PER_ROW - 1) // PER_ROW)
    return {
        "uid": "braid", "title": "Braid", "tags": ["braid"], "timezone": "utc", "schemaVersion": 39, "version": 1,
        "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "panels": panels,
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]},
    }


def main():
    if sys.argv[1:] == ["--exprs"]:
        for _, items in ROWS:
            for _, _, targets in items:
                print("\n".join(expr for expr, _ in targets))
    else:
        json.dump(dashboard(), sys.stdout, indent=1)
        print()


main()
