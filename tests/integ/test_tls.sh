#!/usr/bin/env bash
# TLS, client certificates and tokens with the real binaries: the commands of docs/OPERATIONS.md as they
# are written, a training job through them, who is refused and how, and no token in any log.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$repo/tests/deploy/tools.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
command -v openssl >/dev/null || skip "openssl is not installed"
cd "$work"

block() { awk -v tag="\`\`\`sh $1" '$0 == tag { on = 1; next } /^```/ { on = 0 } on' "$repo/docs/OPERATIONS.md"; }
block tls >setup.sh
check "docs/OPERATIONS.md has the commands" test "$(wc -l <setup.sh)" -gt 10
check "certificates and tokens as the document says" bash -e setup.sh
check "the key is nobody else's" test "$(stat -c %a certs/server.key)" = 600

# The documents' commands, with a port that is free, from the build folder.
block tls-server | sed "s,0.0.0.0:7700,0.0.0.0:0,; s,localhost:7700,localhost," >server.sh
echo "exec $bin/$(cat server.sh) --metrics-listen 127.0.0.1:0 --ready-fd 3" >server.sh
bash server.sh 3>ready 2>ps.log &
started+=($!)
server=$!
check "the document's server serves, on all addresses" until_true 20 grep -q '^READY localhost:' ready
address=$(sed -n 's/^READY //p' ready)
block tls-client | sed "s,localhost:7700,$address," >client.sh
ask() { code=0; (PATH=$bin:$PATH && eval "command $*") >"$out" 2>"$err" || code=$?; }
says() { cat "$out" "$err" | grep -- "$1" >/dev/null; }
ask bash client.sh
check "the document's client is answered" exits 0


# grpcurl, where there is one (tests/unit/test_rpc_reflection.c asks what it asks): the document's commands.
if grpcurl=$(tool grpcurl) && [ -n "$grpcurl" ]; then
  block tls-grpcurl | sed "s,localhost:7700,$address," >grpcurl.sh
  ask env PATH="$(dirname "$grpcurl"):\$PATH" bash -e grpcurl.sh
  check "grpcurl lists, describes and calls" exits 0
  for text in grpc.reflection.v1alpha.ServerReflection 'repeated .braid.v1.TableKeys' '"status": "SERVING"'; do
    check "grpcurl says $text" out_says "$text"
  done
  sed -i 's/^bearer=.*/bearer="authorization: Bearer not-in-the-list-of-tokens"/' grpcurl.sh
  ask env PATH="$(dirname "$grpcurl"):\$PATH" bash -e grpcurl.sh
  check "a wrong token: refused" exits 1
  check "and told why" says "not in this server's list"
else
  echo "NOTICE: grpcurl is not installed: its commands in docs/OPERATIONS.md are not run"
fi

status="braid ps status --coordinator $address --timeout 2s --tls-ca certs/ca.crt"
mine="--tls-cert certs/client.crt --tls-key certs/client.key"
ask "$status $mine"
check "no token: refused" exits 1
check "and told why" says "wants a token"
openssl rand -hex 32 >certs/unknown.token
ask "$status $mine --token-file certs/unknown.token"
check "an unknown token: refused" says "not in this server's list"
drain="braid ps drain --yes --timeout 5s --coordinator $address --tls-ca certs/ca.crt $mine"
ask "$drain --token-file certs/train.token"
check "a token of too small a scope: refused" says "has the scope train, this needs admin"
ask "$drain --token-file certs/admin.token"
check "an administrator drains" exits 0

# Strangers: every one ends with 4 (cannot be reached), after as long as it was told to try, so all at once;
# and the server goes on.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj "/CN=localhost" \
  -keyout other.key -out other.crt 2>/dev/null
strangers=() names=()
stranger() { # NAME OPTION...
  (cd "$work" && exec timeout 60 "$bin/braid" ps status --coordinator "$address" --timeout 2s "${@:2}") >"stranger-$1.txt" 2>&1 &
  strangers+=($!) names+=("$1")
}
ca=(--tls-ca certs/ca.crt) token=(--token-file certs/read.token)
# shellcheck disable=SC2086 # options are words
{
  stranger no-certificate "${ca[@]}" "${token[@]}"
  stranger strange-certificate "${ca[@]}" --tls-cert other.crt --tls-key other.key "${token[@]}"
  stranger strange-authority --tls-ca other.crt $mine "${token[@]}"
  stranger plain-text
}
for i in "${!strangers[@]}"; do
  code=0
  wait "${strangers[i]}" || code=$?
  cp "stranger-${names[i]}.txt" "$err"
  check "${names[i]}: refused" exits 4
done
head -c 4096 /dev/urandom >"/dev/tcp/localhost/${address##*:}" 2>/dev/null || true
check "the server is alive" kill -0 "$server"
ask bash client.sh
check "and answers" exits 0

# A job of two workers over two servers through mutual TLS and tokens. The launcher's children read
# the files' names from the environment.
secure_run() {
  export BRAID_TLS_CA=$work/certs/ca.crt BRAID_TLS_CERT=$work/certs/server.crt BRAID_TLS_KEY=$work/certs/server.key
  export BRAID_TLS_CLIENT_AUTH=require BRAID_TOKENS_FILE=$work/certs/tokens BRAID_TOKEN_FILE=$work/certs/admin.token
  braid run "$repo/tests/integ/small.yaml" --set workers=2 --set servers=2 --set data.generate.rows=6000 \
    --run-dir "$work/run"
}
plain_run() {
  braid run "$repo/tests/integ/small.yaml" --set workers=2 --set servers=2 --set data.generate.rows=6000 \
    --run-dir "$work/plain"
}
(secure_run; exit "$code") || true
check "a job trains through TLS" grep -q param_hash "$out"
secure=$(result param_hash)
plain_run
check "the same job in plain text" exits 0
check "gives the same model" test "$secure" = "$(result param_hash)"

kill "$server"
wait "$server" || true
grep -rhoFf <(cat certs/*.token) ps.log run "$out" "$err" >leaks.txt 2>/dev/null || true
check "no token in any log" test ! -s leaks.txt
check "which this test would see" test "$(grep -cFf <(cat certs/*.token) certs/tokens)" = 3
finish
