# Sourced after lib.sh: braid-ps processes for clients that are not braid-worker.
#   servers_start N [FIRST]   starts N servers (data in $work/ps-i); $coordinator is server 0
#   server_stop I             ends server I the orderly way
server_pids=()

server_start() { # I N
  local i=$1 n=$2 ready=$work/ps-$1.ready
  rm -f "$ready"
  "$bin/braid-ps" --index "$i" --servers "$n" --data-dir "$work/ps-$i" --log-level warn \
    --listen "${server_addr[$i]:-127.0.0.1:0}" --coordinator "${server_addr[0]:-}" \
    --ready-fd 3 3>"$ready" 2>"$work/ps-$i.log" &
  server_pids[i]=$!
  started+=($!)
  until_true 20 grep -q READY "$ready" || { cat "$work/ps-$i.log" >&2; return 1; }
  server_addr[$i]=$(sed -n 's/^READY //p' "$ready")
}

servers_start() { # N
  local i
  server_addr=()
  for ((i = 0; i < $1; i++)); do
    server_start "$i" "$1"
  done
  coordinator=${server_addr[0]}
}

server_stop() { # I
  kill "${server_pids[$1]}"
  wait "${server_pids[$1]}"
}
