"""What a kubelet and Prometheus ask a pod: grpc.health.v1 in plain HTTP/2, and /metrics."""
import re
import socket
import struct
import urllib.request


def _literal(name, value):
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def grpc_health(address, port, service, timeout_s=3.0):
    """True when the service is SERVING; no answer is False, as for a kubelet."""
    name = service.encode()
    message = b"\x0a" + bytes([len(name)]) + name
    headers = b"\x83\x86" + b"".join(_literal(k, v) for k, v in (
        (":path", "/grpc.health.v1.Health/Check"), (":authority", f"{address}:{port}"), ("te", "trailers"),
        ("content-type", "application/grpc")))
    try:
        with socket.create_connection((address, port), timeout_s) as s:
            s.settimeout(timeout_s)
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0) + _frame(1, 4, 1, headers) +
                      _frame(0, 1, 1, struct.pack(">BI", 0, len(message)) + message))
            stream = s.makefile("rb")
            while True:
                head = stream.read(9)
                if len(head) < 9:
                    return False
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if head[3] == 0 and head[5:9] == b"\x00\x00\x00\x01":
                    return payload[5:] == b"\x08\x01"
                if head[3] == 1 and head[4] & 1:  # trailers alone: an error
                    return False
    except OSError:
        return False


def metrics(address, port, timeout_s=3.0):
    """{series: value}, e.g. {'braid_ps_ready': 1.0, 'x{a="b"}': 2.0}; {} when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=timeout_s) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    return {m.group(1): float(m.group(2)) for m in re.finditer(r"^([a-z][^ #{]*(?:\{.*\})?) (\S+)$", text, re.M)}
