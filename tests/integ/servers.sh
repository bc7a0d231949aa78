# Sourced after lib.sh: braid-ps processes for clients that are not braid-worker.
#   servers_start N [FIRST]   starts N servers (data in $work/ps-i); $coordinator is server 0
#   server_stop I             ends server I the orderly way
server_pids=()
# An address of the loopback that is this script's alone: a server that comes back finds its port free, which on
# 127.0.0.1 a connection of anybody may have taken meanwhile.
own_host=127.$((64 + ($$ >> 16 & 63))).$(($$ >> 8 & 255)).$(($$ & 255))

server_start() { # I N
  local i=$1 n=$2 ready=$work/ps-$1.ready
  rm -f "$ready"
  "$bin/braid-ps" --index "$i" --servers "$n" --data-dir "$work/ps-$i" --log-level warn \
    --listen "${server_addr[$i]:-$own_host:0}" --coordinator "${server_addr[0]:-}" \
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
