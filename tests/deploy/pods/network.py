"""One machine as a cluster's network: a namespace for each pod on a bridge, links of a given rate, and the
cluster's name service, which knows a pod from its start to its end and gives each start a new address."""
import os
import shutil
import socket
import struct
import subprocess
import threading

DOMAIN = "cluster.local"


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def claim_net():
    """A /24 that no other run on this host uses, and what holds it: a name that the kernel frees with the process."""
    for i in range(100, 200):
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0braid-pods-{i}")
            return f"10.78.{i}", held
        except OSError:
            held.close()
    raise RuntimeError("a hundred runs of this on one host")


def interfaces_with(address):
    listed = subprocess.run(["ip", "-br", "addr"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if f"{address}/24" in line.split()]


class Network:
    def __init__(self, rate="1gbit"):
        self.tag, self.rate, self.next_host, self.hosts = f"bp{os.getpid()}", rate, 10, []
        self.net, self.held = claim_net()
        self.gateway = f"{self.net}.1"
        for left in interfaces_with(self.gateway):  # by a run that was killed
            ip("link", "del", left)
        self.records, self.lock = {}, threading.Lock()  # name -> [address]
        self.deaf = False  # queries are lost
        # An address of its own: else it is that of a port, and changes when pods come and go.
        ip("link", "add", self.tag, "address", "02:42:0a:4e:00:01", "type", "bridge")
        ip("addr", "add", f"{self.gateway}/24", "dev", self.tag)
        ip("link", "set", self.tag, "up")
        self.dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.dns.bind((self.gateway, 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def host(self):
        """A new namespace: (its name, its address)."""
        n, self.next_host = self.next_host, self.next_host + 1
        ns, link = f"{self.tag}-{n}", f"{self.tag}v{n}"
        ip("netns", "add", ns)
        self.hosts.append(ns)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", ns)
        ip("link", "set", link, "master", self.tag, "up")
        ip("-n", ns, "addr", "add", f"{self.net}.{n}/24", "dev", "eth0")
        ip("-n", ns, "link", "set", "eth0", "up")
        ip("-n", ns, "link", "set", "lo", "up")
        if shutil.which("tc"):
            for where in (["ip", "netns", "exec", ns, "tc", "qdisc", "replace", "dev", "eth0"],
                          ["tc", "qdisc", "replace", "dev", link]):
                subprocess.run([*where, "root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "20ms"], check=True)
        return ns, f"{self.net}.{n}"

    def set_link(self, ns, state):
        """down: the rest of the cluster and this host hear nothing of each other."""
        ip("link", "set", f"{self.tag}v{ns.rpartition('-')[2]}", state)

    def remove(self, ns):
        self.hosts.remove(ns)
        ip("netns", "del", ns)

    def close(self):
        self.dns.close()
        for ns in list(self.hosts):
            subprocess.run(["ip", "netns", "del", ns], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self.tag], check=False, stderr=subprocess.DEVNULL)
        self.held.close()

    def resolv_conf(self, namespace):
        """As a kubelet writes it."""
        return (f"nameserver {self.gateway}\nsearch {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\n"
                "options ndots:5\n")

    def publish(self, names, address):
        with self.lock:
            for name in names:
                self.records.setdefault(f"{name}.{DOMAIN}".lower(), []).append(address)

    def withdraw(self, address):
        with self.lock:
            for name in list(self.records):
                self.records[name] = [a for a in self.records[name] if a != address]
                if not self.records[name]:
                    del self.records[name]

    def _serve(self):
        while True:
            try:
                query, sender = self.dns.recvfrom(512)
                if self.deaf:
                    continue
                self.dns.sendto(self._answer(query), sender)
            except OSError:
                if self.dns.fileno() < 0:
                    return
            except (IndexError, struct.error, UnicodeDecodeError):
                continue  # not a query

    def _answer(self, query):
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12:at + 5]
        kind = struct.unpack_from(">H", query, at + 1)[0]
        with self.lock:
            known = self.records.get(".".join(labels).lower())
        addresses = known if known and kind == 1 else []
        head = struct.pack(">2sHHHHH", query[:2], 0x8580 | (0 if known else 3), 1, len(addresses), 0, 0)
        return head + question + b"".join(struct.pack(">HHHIH4s", 0xC00C, 1, 1, 5, 4, socket.inet_aton(a))
                                          for a in addresses)
