"""Starts pods: as containers of podman, or as processes with the same root, user, limits and volumes.

Both give a pod a network namespace of its own, the image's files read-only, its volumes, its environment and
nothing else, user and group of its security context, no capability, its memory limit, and SIGTERM at its end.
"""
import os
import shutil
import signal
import subprocess
import time

import manifests
import probe

CGROUP1, CGROUP2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


class Running:
    """One start of a pod's container."""

    def __init__(self, runner, pod, ns, address, log):
        self.runner, self.pod, self.ns, self.address, self.log = runner, pod, ns, address, log
        self.process = None  # Popen: the program itself, or podman in its place
        self.output = log + ".out"

    @property
    def pid(self):
        return self.runner.pid_of(self)

    def alive(self):
        return self.process.poll() is None

    def probe(self, name):
        port, service = self.pod.probe(name)
        return probe.grpc_health(self.address, port, service)

    def metrics(self):
        return probe.metrics(self.address, self.pod.port("metrics"))

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.process.wait(20)

    def stop(self, pre_stop_s):
        """As a kubelet ends a pod; the exit code. Raises where the grace period is not kept."""
        deadline = time.monotonic() + self.pod.grace_s
        time.sleep(pre_stop_s)  # the hook itself: sleep
        os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.pod.name} took longer than its {self.pod.grace_s} s to stop") from None

    def text(self):
        with open(self.output, encoding="utf-8") as f:
            return f.read()


class Runner:
    """image: folder laid out by deploy/image-root.sh. work: folder for volumes and logs."""

    def __init__(self, network, image, work):
        self.network, self.image, self.work, self.started = network, image, work, []

    def volume(self, pod, volume):
        """The folder behind a volume; made when it is not there."""
        uid, gid = pod.user
        if "claim" in volume:
            path = f"{self.work}/claims/{volume['claim']}"
        elif "persistentVolumeClaim" in volume:
            path = f"{self.work}/claims/{volume['persistentVolumeClaim']['claimName']}"
        elif "configMap" in volume:
            path = f"{self.work}/configs/{volume['configMap']['name']}"
            os.makedirs(path, exist_ok=True)
            for key, text in pod.configs[volume["configMap"]["name"]].items():
                with open(f"{path}/{key}", "w", encoding="utf-8") as f:
                    f.write(text)
            return path
        elif "emptyDir" in volume:
            path = f"{self.work}/empty/{pod.name}/{volume['name']}"
        else:
            raise manifests.Unsupported(f"{pod.name}: volume {volume}")
        os.makedirs(path, exist_ok=True)
        os.chown(path, uid, gid)
        return path

    def start(self, docs, pod, before=None):
        """before: an earlier start in the same pod, whose namespace and address stay (its container died)."""
        if before is not None:
            ns, address = before.ns, before.address
        else:
            ns, address = self.network.host()
            self.network.publish(manifests.names_of(docs, pod), address)
        run = Running(self, pod, ns, address, f"{self.work}/{pod.name}.{len(self.started)}.log")
        resolv = f"{self.work}/resolv-{pod.namespace}.conf"
        with open(resolv, "w", encoding="utf-8") as f:
            f.write(self.network.resolv_conf(pod.namespace))
        mounts = [(self.volume(pod, v), path, ro, v.get("emptyDir", {})) for v, path, ro in pod.mounts()]
        self.started.append(run)
        with open(run.log, "wb") as err, open(run.output, "wb") as out:
            run.process = subprocess.Popen(self.command(run, mounts, resolv), stdin=subprocess.DEVNULL, stdout=out,
                                           stderr=err, env={"PATH": os.environ["PATH"], **self.environment()})
        return run

    def end(self, run):
        """The pod is gone: its namespace and its names too."""
        self.network.withdraw(run.address)
        self.network.remove(run.ns)

    def environment(self):
        return {}

    def show_logs(self):
        """The ends of all logs, after a failure."""
        for run in self.started:
            with open(run.log, encoding="utf-8", errors="replace") as f:
                print(f"---- {os.path.basename(run.log)}\n" + "".join(f.readlines()[-6:]), end="")

    def close(self):
        for run in self.started:
            if run.process is not None and run.alive():
                try:
                    run.kill()
                except (OSError, subprocess.TimeoutExpired, ValueError):
                    run.process.kill()
                    run.process.wait()


SCRIPT = r"""
set -e
image=$1 root=$2 resolv=$3 group=$4 inside=$5
shift 5
mount --bind "$image" "$root" && mount -o remount,bind,ro "$root"
mount -t proc -o ro proc "$root/proc"
mount -t tmpfs -o mode=755 dev "$root/dev"
mkdir "$root/dev/shm"
mknod -m 666 "$root/dev/null" c 1 3 && mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/urandom" c 1 9 && mknod -m 666 "$root/dev/random" c 1 8
mount --bind "$resolv" "$root/etc/resolv.conf"
mount --bind "$group" "$root$inside"
while [ "$1" != -- ]; do
  if [ "$3" = memory ]; then mount -t tmpfs -o "size=$4,mode=1777" tmpfs "$root$2"; else mount --bind "$1" "$root$2"; fi
  [ "$3" != ro ] || mount -o remount,bind,ro "$root$2"
  shift 4
done
shift
echo $$ >"$group/cgroup.procs"
exec "$@"
"""


class ProcessRunner(Runner):
    """In the pod's namespaces of network and mounts, with chroot into the image."""

    def __init__(self, network, image, work):
        super().__init__(network, image, work)
        self.root, self.groups = f"{work}/root", []
        os.makedirs(self.root, exist_ok=True)
        self.v2 = os.path.exists(f"{CGROUP2}/cgroup.controllers")
        for path in ("proc", "dev", "sys/fs/cgroup/memory"):
            os.makedirs(f"{image}/{path}", exist_ok=True)
        with open(f"{image}/etc/resolv.conf", "a", encoding="utf-8"):
            pass

    def group(self, pod):
        """A control group with the pod's memory limit."""
        path = f"{CGROUP2 if self.v2 else CGROUP1}/{self.network.tag}-{pod.name}"
        if path not in self.groups:
            os.mkdir(path)
            self.groups.append(path)
        limit = "memory.max" if self.v2 else "memory.limit_in_bytes"
        with open(f"{path}/{limit}", "w", encoding="ascii") as f:
            f.write(str(pod.memory_bytes))
        return path

    def command(self, run, mounts, resolv):
        uid, gid = run.pod.user
        words = []
        for source, path, read_only, empty in mounts:
            os.makedirs(self.image + path, exist_ok=True)
            memory = empty.get("medium") == "Memory"
            words += [source, path, "memory" if memory else "ro" if read_only else "rw",
                      str(manifests.quantity(empty.get("sizeLimit", 0)))]
        env = [f"{k}={v}" for k, v in run.pod.env(run.address).items()]
        return ["nsenter", f"--net=/run/netns/{run.ns}", "unshare", "--mount", "sh", "-c", SCRIPT, "sh", self.image, self.root,
                resolv, self.group(run.pod), "/sys/fs/cgroup" if self.v2 else "/sys/fs/cgroup/memory", *words, "--",
                shutil.which("setpriv"), "--no-new-privs", "--inh-caps=-all",
                "--bounding-set=-all,+sys_chroot,+setuid,+setgid",
                shutil.which("env"), "-i", *env,
                shutil.which("chroot"), f"--userspec={uid}:{gid}", "--groups=", self.root, *run.pod.argv()]

    def pid_of(self, run):
        return run.process.pid  # every program of the command executes the next one

    def close(self):
        super().close()
        for path in self.groups:
            for _ in range(100):  # the kernel lets go of a dead process's group a moment later
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    time.sleep(0.05)


class PodmanRunner(Runner):
    """Containers of the image that buildah makes of deploy/Containerfile, run by runc."""

    def __init__(self, network, image, work, repo):
        super().__init__(network, image, work)
        self.name = "localhost/braid:pods"
        with open(f"{work}/storage.conf", "w", encoding="utf-8") as f:
            f.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{work}/store"\nrunroot = "{work}/run"\n')
        with open(f"{work}/containers.conf", "w", encoding="utf-8") as f:
            f.write('[containers]\ndefault_ulimits = ["nofile=4096:4096","nproc=4096:4096"]\n'
                    '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
        subprocess.run(["buildah", "bud", "--isolation", "chroot", "--pull-never", "--target", "prebuilt", "-f",
                        f"{repo}/deploy/Containerfile", "-t", self.name, image], check=True, env=self.full_environment(),
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        trial = subprocess.run(["podman", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL",
                                self.name, "/usr/bin/braid-ps", "--version"], check=False, env=self.full_environment(),
                               capture_output=True, text=True)
        if trial.returncode != 0:
            raise OSError("containers do not run here: " + trial.stderr.strip())

    def environment(self):
        return {"CONTAINERS_CONF": f"{self.work}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{self.work}/storage.conf"}

    def full_environment(self):
        return {**os.environ, **self.environment()}

    @staticmethod
    def container(run):
        return os.path.basename(run.log).replace(".log", "").replace(".", "-") + "-" + run.runner.network.tag

    def command(self, run, mounts, resolv):
        uid, gid = run.pod.user
        volumes = []
        for source, path, read_only, empty in mounts:
            if empty.get("medium") == "Memory":
                size = manifests.quantity(empty.get("sizeLimit", 0))
                volumes += ["--tmpfs", f"{path}:rw,size={size},mode=1777"]
            else:
                volumes += ["--volume", f"{source}:{path}" + (":ro" if read_only else "")]
        env = [w for k, v in run.pod.env(run.address).items() for w in ("--env", f"{k}={v}")]
        return ["podman", "run", "--name", self.container(run), "--network", f"ns:/run/netns/{run.ns}", "--read-only",
                "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user",
                f"{uid}:{gid}", "--memory", str(run.pod.memory_bytes), "--volume", f"{resolv}:/etc/resolv.conf:ro",
                "--no-hosts", "--pull", "never", *volumes, *env, self.name, *run.pod.argv()]

    def pid_of(self, run):
        end = time.monotonic() + 20
        while True:
            out = subprocess.run(["podman", "inspect", "-f", "{{.State.Pid}}", self.container(run)], check=False,
                                 env=self.full_environment(), capture_output=True, text=True).stdout.strip()
            if out.isdigit() and out != "0":
                return int(out)
            if not run.alive() or time.monotonic() > end:
                raise OSError(f"{self.container(run)} has no process")
            time.sleep(0.05)

    def close(self):
        super().close()
        names = [self.container(run) for run in self.started]
        if names:
            subprocess.run(["podman", "rm", "-f", "-t", "0", *names], check=False, env=self.full_environment(),
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open("/proc/mounts", encoding="utf-8") as f:  # what podman has left, inner ones last
            left = [line.split()[1] for line in f if line.split()[1].startswith(self.work + "/")]
        for path in reversed(left):
            subprocess.run(["umount", "-l", path], check=False, stderr=subprocess.DEVNULL)
