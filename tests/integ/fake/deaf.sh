#!/usr/bin/env bash
# A server that never comes up.
trap 'exit 0' TERM
while :; do
  sleep 0.05
done
