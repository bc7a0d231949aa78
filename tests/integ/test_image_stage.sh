#!/usr/bin/env bash
# The stage of deploy/Containerfile that compiles, quickly: its own lines, as written but for three paths, in what a
# clone holds. Packages are this machine's; ninja plans all of it and, with LONG=1, compiles it (minutes).
# tests/integ/test_container.sh builds the other stages and, with a BASE, this one too, and runs the image.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need braid braid-ps braid-worker
: >"$out" && : >"$err"
for tool in cmake ninja; do command -v $tool >/dev/null || skip "$tool is not installed"; done
file=$repo/deploy/Containerfile
[ -z "$(ldd "$bin/braid-ps" | grep -E 'lib(a|t|ub)san')" ] || skip "a sanitized build is no image"

clone=$work/src
mkdir "$clone"
(cd "$repo" && (git ls-files -z 2>/dev/null || true) | xargs -0r cp --parents -t "$clone" 2>/dev/null) || true
[ -f "$clone/CMakeLists.txt" ] || skip "no clone to copy"

# The lines of one stage, continued ones joined.
stage() { awk '/^FROM / { on = ($NF == "build") } on' "$1" | sed -e ':a; /\\$/ { N; s/\\\n *//; ba }'; }
steps() { stage "$1" | sed -n 's/^RUN //p'; }
copied() { stage "$1" | awk '/^COPY / { for (i = 2; i < NF; i++) print $i }'; }
here() { sed "s,/build\b,$work/build,g; s,/out\b,$work/out,g; s,\${CUDA},OFF,g"; }

check "it has three parts to run" test "$(steps "$file" | sed 's/ && /\n/g' | wc -l)" -ge 3
there() { while read -r path; do [ -e "$clone/$path" ] || { echo "no $path in a clone"; return 1; }; done < <(copied "$1"); }
check "what it copies is in a clone" there "$file"
sed 's,deploy/install-deps.sh deploy,deploy/install-dep.sh deploy,' "$file" >"$work/wrong"
check "this test sees a path that is not" test "$(there "$work/wrong")" = "no deploy/install-dep.sh in a clone"

missing=$(bash "$repo/deploy/install-deps.sh" --list 2>/dev/null || echo "(no apt)")
[ -z "$missing" ] || echo "NOTICE: packages of install-deps.sh that are not here: $(tr '\n' ' ' <<<"$missing")"
check "it installs by install-deps.sh" grep -q '^bash deploy/install-deps.sh' <(steps "$file")

mapfile -t parts < <(steps "$file" | grep -v install-deps | here | sed 's/ && /\n/g')
run() { (cd "$clone" && bash -c "$1"); }
check "three: configure, compile, lay out" test ${#parts[@]} = 3
check "configure: ${parts[0]}" run "${parts[0]}"
if is_long; then
  check "compile: ${parts[1]}" run "${parts[1]}"
else
  # The same targets, asked for their commands: each program is linked, each source is in the clone.
  read -ra words <<<"${parts[1]#*--target }"
  commands() { ninja -C "$work/build" -t commands "${words[@]}" >"$work/commands.txt"; }
  check "compile, planned: ${parts[1]}" commands
  linked() { local p; for p in braid braid-ps braid-worker; do grep -qE -- "-o bin/$p( |\$)" "$work/commands.txt" || { echo "no $p"; return 1; }; done; }
  check "every program of the image is linked" linked
  sources() { grep -oE -- '-c [^ ]+\.(c|cu)' "$work/commands.txt" | cut -c 4- | sort -u; }
  of_the_clone() { local f; for f in $(sources); do case $f in "$work/build/"*) ;; "$clone/"*) [ -f "$f" ] || { echo "no $f"; return 1; } ;; *) echo "$f is outside"; return 1 ;; esac; done; }
  check "from many sources" test "$(sources | wc -l)" -gt 100
  check "all of the clone" of_the_clone
  mkdir -p "$work/build/bin" && cp "$bin"/braid "$bin"/braid-ps "$bin"/braid-worker "$work/build/bin/"
fi
check "lay out: ${parts[2]}" run "${parts[2]}"
for program in braid braid-ps braid-worker; do
  check "$program is in the root" test -x "$work/out/usr/bin/$program"
done
check "none tells the loader where to look" no_runpath "$work"/out/usr/bin/*
check "this test sees one that does" test "$(printf 'int main(void) { return 0; }' | cc -x c -Wl,-rpath,/x: -o "$work/told" - && no_runpath "$work/told" >/dev/null || echo seen)" = seen
check "the clone stays as it was" test -z "$(cd "$clone" && find . -newer "$work/wrong" -type f | head -3)"
finish
