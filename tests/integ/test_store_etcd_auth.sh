#!/usr/bin/env bash
# An etcd of three members as a platform team runs it: TLS with an authority of its own, client certificates, users
# and roles. A job's cluster keeps its state there, through the loss of the member it speaks to, a password that is
# changed, and members that start again and know no token any more. Refusals say what to do; no secret is in a log.
# ctest: COST 20
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
for tool in etcd etcdctl openssl; do
  command -v $tool >/dev/null || skip "$tool is not installed (etcd-server, etcd-client, openssl)"
done

certs=$work/certs
mkdir "$certs"
ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
make_ca() { openssl req -x509 "${ec[@]}" -days 30 -subj "/CN=$1" -keyout "$certs/$1.key" -out "$certs/$1.crt" 2>/dev/null; }
make_cert() { # NAME, CA
  openssl req "${ec[@]}" -subj "/CN=$1" -keyout "$certs/$1.key" -out "$certs/$1.csr" 2>/dev/null
  echo "subjectAltName=DNS:localhost,IP:127.0.0.1" >"$certs/$1.ext"
  openssl x509 -req -days 30 -in "$certs/$1.csr" -CA "$certs/$2.crt" -CAkey "$certs/$2.key" -CAcreateserial \
    -extfile "$certs/$1.ext" -out "$certs/$1.crt" 2>/dev/null
}
make_ca etcd-ca && make_ca stranger-ca
make_cert etcd etcd-ca && make_cert braid etcd-ca && make_cert nobody etcd-ca && make_cert stranger stranger-ca

client=() peer=() members=()
for i in 0 1 2; do
  client[i]=$(free_port) peer[i]=$(free_port)
  members+=("m$i=http://127.0.0.1:${peer[i]}")
done
cluster=$(IFS=, && echo "${members[*]}")
store=etcd://127.0.0.1:${client[0]},127.0.0.1:${client[1]},127.0.0.1:${client[2]}/team/braid
etcd_pids=()
etcd_start() { # I
  etcd --data-dir "$work/etcd-$1" --name "m$1" --initial-cluster "$cluster" \
    --listen-client-urls "https://127.0.0.1:${client[$1]}" --advertise-client-urls "https://127.0.0.1:${client[$1]}" \
    --listen-peer-urls "http://127.0.0.1:${peer[$1]}" --initial-advertise-peer-urls "http://127.0.0.1:${peer[$1]}" \
    --cert-file "$certs/etcd.crt" --key-file "$certs/etcd.key" --trusted-ca-file "$certs/etcd-ca.crt" \
    --client-cert-auth >>"$work/etcd-$1.log" 2>&1 &
  etcd_pids[$1]=$!
  started+=($!)
}
etcd_kill() { kill -9 "${etcd_pids[$1]}" && { wait "${etcd_pids[$1]}" 2>/dev/null || true; }; }
ctl() { # as etcd's root, of a member that is there
  ETCDCTL_API=3 etcdctl --endpoints "https://127.0.0.1:${client[${member:-0}]}" --cacert "$certs/etcd-ca.crt" \
    --cert "$certs/nobody.crt" --key "$certs/nobody.key" --command-timeout 20s "${as_root[@]}" "$@"
}
for i in 0 1 2; do etcd_start $i; done
as_root=()
check "etcd is there" until_true 60 ctl endpoint health
echo "first-secret-of-etcd" >"$work/password"
users() {
  ctl user add root:root-secret && ctl user grant-role root root && ctl role add braid-role &&
    ctl role grant-permission braid-role readwrite --prefix=true /team/braid/ &&
    ctl user add "braid:$(cat "$work/password")" && ctl user grant-role braid braid-role &&
    ctl user add guest:guest-secret && ctl auth enable
}
check "users and roles" users
as_root=(--user root:root-secret)

job=("$repo/tests/integ/small.yaml" --workers 2 --servers 2)
braid run "${job[@]}" --run-dir plain
check "without etcd" exits 0
plain=$(result param_hash)
echo "token-of-braids-own-servers" >"$work/own.token"
export BRAID_TOKEN_FILE=$work/own.token # not etcd's business

export BRAID_ETCD_CA=$certs/etcd-ca.crt BRAID_ETCD_CERT=$certs/nobody.crt BRAID_ETCD_KEY=$certs/nobody.key
export BRAID_ETCD_USER=braid BRAID_ETCD_PASSWORD_FILE=$work/password
braid run "${job[@]}" --run-dir user --store "$store"
check "as a user with a password" exits 0
check "the same model: $plain, $(result param_hash)" test "$(result param_hash)" = "$plain"
ctl get --prefix --keys-only / >"$out"
check "its state is in etcd" out_says '^/team/braid/kv/braid/map$'

# While it trains: the member that is asked dies; then every member is new, and so is the password.
braid_start run "${job[@]}" --run-dir outage --store "$store" --set train.epochs=3
step_of() { tail -1 "$work/outage/metrics.jsonl" | grep -oE '"step":[0-9]+' | head -1 | cut -d: -f2; }
trains() { [ "$(step_of)" -gt "$1" ]; }
until_true 60 trains 50 || true
check "it trains" trains 50
etcd_kill 0
member=1
check "the two others go on" until_true 60 ctl endpoint health
check "the password is changed" ctl user passwd braid --interactive=false <<<"second-secret-of-etcd"
echo "second-secret-of-etcd" >"$work/password"
etcd_kill 1 && etcd_kill 2
etcd_start 1 && etcd_start 2
braid_wait
check "a lost member, a new password, members that know no token" exits 0
outage=$(result param_hash)
braid run "${job[@]}" --run-dir calm --set train.epochs=3
check "the model is that of an undisturbed run: $outage, $(result param_hash)" test "$(result param_hash)" = "$outage"
etcd_start 0

# The command line asks etcd too, and is refused in words. Certificates as a user's name: etcd takes the common name.
ask() { LIMIT_S=30 braid ps status --coordinator "$store" --timeout 3s "$@"; }
refused() { # EXIT CODE, WHAT IS SAID, ARGS...
  local status=$1 what=$2
  shift 2
  ask "$@"
  exits "$status" && err_says "$what"
}
answers() { # whatever is wrong with servers that are gone: etcd was asked and told of them
  ask "$@"
  err_says 'no answer|does not answer|not answer' || out_says 'no answer'
}
check "the command line as that user" answers
check "a certificate is a user" answers --etcd-user '' --etcd-password-file '' --etcd-cert "$certs/braid.crt" --etcd-key "$certs/braid.key"
echo "third-secret" >"$work/wrong"
check "a wrong password" refused 1 'has no user "braid" with the password in .*/wrong' --etcd-password-file "$work/wrong"
echo "guest-secret" >"$work/guest"
check "a user without a role" refused 1 'denies user guest the keys below /team/braid/' --etcd-user guest --etcd-password-file "$work/guest"
check "a user without a password file" refused 2 'etcd_user and etcd_password_file: one needs the other' --etcd-password-file ''
check "a file that is not there" refused 2 'etcd_password_file' --etcd-password-file "$work/none"
check "an authority that did not sign etcd's certificate" refused 4 "etcd \\(.*\\): waited" --etcd-ca "$certs/stranger-ca.crt"
check "a certificate of a stranger" refused 4 "etcd \\(.*\\): waited" --etcd-cert "$certs/stranger.crt" --etcd-key "$certs/stranger.key"
check "a certificate without its key" refused 2 'etcd_cert, etcd_key: one needs the other' --etcd-key ''
check "a user in the address" refused 2 'no user in the address: set etcd_user' --coordinator "etcd://braid:address-secret@127.0.0.1:${client[0]}"
check "which is not shown" test -z "$(grep -h address-secret "$err" "$out")"
check "a certificate whose name is no user's" refused 1 "denies etcd_cert's user the keys" --etcd-user '' --etcd-password-file ''

# One that serves plain text and asks for a user: on the loopback a password may go there, elsewhere it may not.
lone=$(free_port) lone_peer=$(free_port)
etcd --data-dir "$work/etcd-3" --name m3 --initial-cluster "m3=http://127.0.0.1:$lone_peer" \
  --listen-client-urls "http://127.0.0.1:$lone" --advertise-client-urls "http://127.0.0.1:$lone" \
  --listen-peer-urls "http://127.0.0.1:$lone_peer" --initial-advertise-peer-urls "http://127.0.0.1:$lone_peer" \
  >"$work/etcd-3.log" 2>&1 &
started+=($!)
unset BRAID_ETCD_CA BRAID_ETCD_CERT BRAID_ETCD_KEY
plain_ctl() { ETCDCTL_API=3 etcdctl --endpoints "http://127.0.0.1:$lone" --command-timeout 20s "$@"; }
store=etcd://127.0.0.1:$lone/team/braid
check "it is there" until_true 30 plain_ctl endpoint health
braid run "${job[@]}" --run-dir early --store "$store"
check "a user, before etcd asks for one" exits 0
check "is told" grep -q 'enable its authentication' "$work/early/ps-0.log"
check "now it asks" plain_ctl user add root:root-secret
check "for root" plain_ctl user grant-role root root
check "with a role" plain_ctl role add braid-role
check "that may" plain_ctl role grant-permission braid-role readwrite --prefix=true /team/braid/
check "and one for us" plain_ctl user add braid:second-secret-of-etcd
check "who has it" plain_ctl user grant-role braid braid-role
check "from here on" plain_ctl auth enable
braid run "${job[@]}" --run-dir late --store "$store" --resume none
check "a job after that" exits 0
check "nobody" refused 1 'asks for a user: set etcd_user and etcd_password_file' --etcd-user '' --etcd-password-file ''
address=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -m 1 '\.' || true)
[ -z "$address" ] || check "a password in plain text" refused 1 'a password is not sent in plain text to another host: set etcd_ca' \
  --coordinator "etcd://$address:$lone/team/braid"

secrets() { grep -rlE 'secret-of-etcd|token-of-braids-own|guest-secret|third-secret' "$work"/{plain,user,outage,calm,early,late} "$work"/etcd-?.log "$out" "$err"; }
check "no secret in any log" test -z "$(secrets)"
finish
