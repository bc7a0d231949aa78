#!/usr/bin/env bash
# Who means no good, or does not know better: floods of connections, garbage, silence, oversized and
# too frequent requests. Each is refused and counted; a server goes on answering others, also one that
# has few file descriptors.
# ctest: COST 15
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps
: >"$out" && : >"$err"
command -v curl >/dev/null || skip "curl is not installed"

cat >"$work/flood.py" <<'P'
# flood.py PORT N ADDRESS SECONDS LIMIT [STUCK]: N connections from ADDRESS, or as many as are taken before one waits
# for STUCK seconds; after SECONDS, or when LIMIT are left, how many are still open.
import select, socket, sys, time
port, n, source, patience = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
stuck = float(sys.argv[6]) if len(sys.argv) > 6 else 0
end, conns = time.monotonic() + patience, []
for i in range(n):
    c = socket.socket()
    c.bind((source, 0))
    c.settimeout(stuck or max(0.01, end - time.monotonic()))
    try:
        c.connect(("127.0.0.1", port))
    except TimeoutError:
        if stuck:
            break
        continue
    except OSError:
        continue
    c.setblocking(False)
    conns.append(c)
def is_open(c):
    try:
        while c.recv(4096):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
made, limit = len(conns), int(sys.argv[5])
while len(conns) > limit and time.monotonic() < end:
    time.sleep(0.05)
    conns = [c for c in conns if is_open(c)]
print("made", made, "open", len(conns), "seconds", int(time.monotonic() - end + patience), flush=True)
sys.stdin.readline()
P
page=127.0.0.1:$(free_port)
start_ps() { # NAME ARGS...
  local name=$1
  shift
  rm -f "$work/ready"
  "$bin/braid-ps" --data-dir "$work/$name" --listen 127.0.0.1:0 --metrics-listen "$page" --log-level info \
    "$@" --ready-fd 3 3>"$work/ready" 2>"$work/$name.log" &
  ps=$!
  started+=("$ps")
  until_true 20 grep -q READY "$work/ready" || return 1
  port=$(sed 's/.*://' "$work/ready")
}
stop_ps() { kill "$ps" && wait "$ps"; }
metric() { curl -sf "http://$page/metrics" | awk -v m="$1" '$1 == m { print $2 }'; }
answers() { braid ps status --coordinator "127.0.0.1:$port" --timeout 10s && exits 0; }
more_than() { at_least "$(metric "$1")" "$2"; }

limit=$(ulimit -Hn)
n=10000
[ "$limit" = unlimited ] || [ "$limit" -gt 11000 ] || n=$((limit / 2 - 100))
ulimit -n "$limit" 2>/dev/null || true
check "a server with limits starts" start_ps ps --max-connections 100
check "it answers" answers
mkfifo "$work/hold"
python3 "$work/flood.py" "$port" "$n" 127.0.0.2 30 100 <"$work/hold" >"$work/flood.txt" 2>&1 &
flood=$!
started+=("$flood")
exec 5>"$work/hold"
check "$n connections of one address have been made" until_true 40 grep -q made "$work/flood.txt"
check "100 of them are left" grep -qE 'made [0-9]+ open (100|[0-9]{1,2}) ' "$work/flood.txt"
check "others are answered meanwhile" answers
least=$((n - 200))
[ "$(sed 's/.*seconds //' "$work/flood.txt")" -lt 8 ] || least=$((n / 10)) # after 10 s silence is a reason, too
check "the closed ones are counted" more_than braid_rpc_limited_connections_total $least
exec 5>&-
wait "$flood" || true
echo "  $(cat "$work/flood.txt"), closed $(metric braid_rpc_limited_connections_total)"

# A peer that closes kills the writers, here and before the pipe.
throw() { (cat >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || true; }
for _ in 1 2 3 4 5; do
  head -c 100000 /dev/urandom | throw || true
  printf 'GET / HTTP/1.1\r\nHost: x\r\n\r\n' | throw || true
  printf 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\377\377\377\377\377\377\377\377\377' | throw || true
done
check "garbage harms nobody" answers
stop_ps
check "and the server ends in order" grep -q 'rows written back' "$work/ps.log"

# Few descriptors: gRPC would never accept again once they are gone.
rm -f "$work/ready"
(ulimit -n 500 && exec "$bin/braid-ps" --data-dir "$work/poor" --listen 127.0.0.1:0 --metrics-listen "$page" \
  --ready-fd 3 3>"$work/ready" 2>"$work/poor.log") &
ps=$!
started+=("$ps")
check "a server with 500 descriptors starts" until_true 20 grep -q READY "$work/ready"
port=$(sed 's/.*://' "$work/ready")
timeout 40 python3 "$work/flood.py" "$port" 2000 127.0.0.2 4 0 2 </dev/null >"$work/flood.txt" 2>&1 || true
check "and answers after as many connections as there was room for" answers
check "the door has been closed" more_than braid_rpc_door_closed_total 1
stop_ps

# Requests a second: the CLI needs 2, a script that asks without a pause is told to slow down.
check "a server with a rate starts" start_ps slow --max-requests-per-second 3
some_refused() { # of four commands at once
  local i asking=() n=0
  for i in 1 2 3 4; do
    "$bin/braid" ps status --coordinator "127.0.0.1:$port" --timeout 10s >"$work/ask.$i" 2>&1 &
    asking+=($!)
  done
  for i in "${asking[@]}"; do wait "$i" || n=$((n + 1)); done
  [ $n -ge 1 ]
}
check "too many requests a second are refused" until_true 30 some_refused
check "and counted" more_than braid_rpc_limited_requests_total 1
check "by method and code, too" more_than 'braid_rpc_server_calls_total{method="braid.v1.Coordinator/GetShardMap",code="OK"}' 1
stop_ps
finish
