#!/usr/bin/env bash
# Stands in for braid-ps: says READY and waits to be stopped. FAKE_PS_<index> is run before READY.
hold() { while :; do sleep 0.05; done; }                        # until a signal ends it
until_file() { until [ -e "$1" ]; do sleep 0.05; done; }
all=$*
while [ $# -gt 0 ]; do
  case $1 in
  --index) index=$2 ;;
  --listen) listen=$2 ;;
  --data-dir) data=$2 ;;
  --ready-fd) fd=$2 ;;
  --coordinator) coordinator=$2 ;;
  esac
  shift
done
mkdir -p "$data"
echo "$all" >"$data/args"
echo "$listen ${coordinator:-}" >>"$data/started"
echo $$ >"$data/pid"
trap 'echo stopped >>"$data/stopped"; exit ${FAKE_PS_STOP_CODE:-0}' TERM
plan=FAKE_PS_$index
eval "${!plan:-}"
[ "$listen" = 127.0.0.1:0 ] && listen=127.0.0.1:4000$index
echo "READY $listen" >&"$fd"
echo "serving on $listen"
hold
