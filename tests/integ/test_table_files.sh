#!/usr/bin/env bash
# Tables as files: what is exported from one server and imported into three is the same table (param_hash), in both
# forms; NumPy reads what is written and writes what is read; an array that is something else is refused by its
# name before any row of it is in the table.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/servers.sh"
. "$(dirname "$0")/python.sh"
need braid braid-ps
[ -e "$build/lib/libbraid.so" ] || skip "$build/lib/libbraid.so is not built"
python_with numpy
: >"$out" && : >"$err"

cat >"$work/table.py" <<'P'
import sys, braid, numpy as np
with braid.connect(sys.argv[1]) as client:
    t = client.create_table("t", 6, initializer=braid.uniform(-1, 1), optimizer=braid.adagrad(0.1), seed=4)
    if sys.argv[2] == "train":
        rng = np.random.default_rng(2)
        for _ in range(20):
            keys = rng.integers(0, 2**64, 200, dtype=np.uint64)
            keys[:2] = 0, 2**64 - 1
            t.push(keys, rng.normal(size=(200, 6)))
    print("hash %x rows %d" % client.param_hash())
P
table() { run_python "$work/table.py" "$coordinator" "$1"; }

servers_start 1
table train
check "a table is trained" exits 0
cp "$out" "$work/trained.txt"
check "of $(cat "$out")" out_says 'rows 3962$'
for form in npy tsv; do
  braid table export t --coordinator "$coordinator" --output "t.$form" --with-state
  check "export to .$form" exits 0
done
server_stop 0
rm -rf "$work"/ps-*

for form in npy tsv; do
  servers_start 3
  table look
  check "another cluster has no row" out_says 'rows 0$'
  braid table import t --coordinator "$coordinator" --input "t.$form" --with-state
  check "import of .$form" exits 0
  table look
  check "is the table that was exported: $(cat "$out")" diff "$work/trained.txt" "$out"
  [ $form = tsv ] || for i in 2 1 0; do server_stop "$i"; done
  [ $form = tsv ] || rm -rf "$work"/ps-*
done

# NumPy's own: read, and written anew by it.
cat >"$work/arrays.py" <<'P'
import sys, numpy as np
k, r, s = (np.load(f"t.{a}.npy") for a in ("keys", "rows", "state"))
assert k.dtype == np.uint64 and r.dtype == s.dtype == np.float32 and len(set(k)) == len(k) == 3962
assert r.shape == s.shape == (3962, 6) and np.isfinite(r).all() and (s > 0).all()
def save(name, k=k, r=r, s=s):
    for a, x in (("keys", k), ("rows", r), ("state", s)):
        np.save(f"{name}.{a}.npy", x)
order = np.random.default_rng(0).permutation(len(k))
save("shuffled", k[order], r[order], s[order])
save("fortran", r=np.asfortranarray(r))
save("double", r=r.astype(np.float64))
save("bigendian", r=r.astype(">f4"))
save("signed", k=k.view(np.int64))
save("flat", r=r.reshape(-1))
save("narrow", r=r[:, :5])
save("fewer", r=r[:-1])
save("text", r=r.astype("U8"))
save("record", r=r.view([("a", "<f4")]))
save("otherstate", s=s[:, :3])
save("cut"), save("longer"), save("lies"), save("empty"), save("nan", r=np.where(k[:, None] == 0, np.nan, r).astype("f4"))
whole = open("cut.rows.npy", "rb").read()
open("cut.rows.npy", "wb").write(whole[:-1000])
open("longer.rows.npy", "wb").write(whole + b"\0" * 24)
open("lies.rows.npy", "wb").write(whole.replace(b"(3962, 6)", b"(9999, 6)"))
open("empty.rows.npy", "wb").close()
P
code=0
(cd "$work" && "$python" arrays.py) >"$out" 2>"$err" || code=$?
check "NumPy reads the arrays" exits 0
braid table set t 0 1 1 1 1 1 1 --coordinator "$coordinator"
braid table import t --coordinator "$coordinator" --input shuffled.npy --with-state
check "what NumPy wrote is imported, in any order" exits 0
table look
check "and the table is as it was" diff "$work/trained.txt" "$out"

refused() { # NAME CODE WORDS
  braid table import t --coordinator "$coordinator" --input "$1.npy" --with-state
  check "$1: refused" exits "$2"
  check "$1: by name" err_says "$3"
  check "$1: in a line" test "$(wc -l <"$err")" = 1
}
refused fortran 3 "fortran.rows.npy: must be 'descr': '<f4' in C order, is .*'fortran_order': True"
refused double 3 "double.rows.npy: must be .*'<f8'"
refused bigendian 3 "bigendian.rows.npy: must be .*'>f4'"
refused signed 3 "signed.keys.npy: must be 'descr': '<u8'"
refused flat 3 "flat.rows.npy: the shape must be \(n, elements\)"
refused narrow 3 "narrow.npy has rows of 5 numbers, table \"t\" of 6"
refused fewer 3 "fewer.rows.npy has 3961 rows"
refused text 3 "text.rows.npy: must be"
refused record 3 "record.rows.npy: must be"
refused otherstate 3 "otherstate.npy has 3 numbers of optimiser state a row, table \"t\" 6"
refused cut 3 "cut.rows.npy: 3962 rows of 24 bytes by its header, but 94088 bytes of data"
refused longer 3 "longer.rows.npy: 3962 rows .* but 95112 bytes"
refused lies 3 "lies.rows.npy: 9999 rows|lies.rows.npy has 9999 rows"
refused empty 3 "empty.rows.npy: not a NumPy array"
refused nan 5 "table \"t\".*key 0"
refused nothing 3 "nothing.keys.npy"
table look
check "no row of them is in the table" diff "$work/trained.txt" "$out"
for i in 2 1 0; do
  check "server $i stops in good order" server_stop "$i"
done
finish
