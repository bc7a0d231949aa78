"""The public API's messages in Python's protobuf, beside our codecs (tests/unit/test_wire.c).

    wire.py check GENERATED TEST_WIRE WORK      random messages of every type, both directions
    wire.py golden GENERATED TEST_WIRE FOLDER   writes the files that are missing in FOLDER

GENERATED: what protoc --python_out made of proto/braid/v1. The text of a message: tests/util/wire.h.
"""

import importlib
import pathlib
import random
import struct
import subprocess
import sys

FILES = ("parameter_server", "coordinator", "autograd")
ROUNDS = 40


def message_types(generated):
    """Name -> class, for every message of the .proto files."""
    sys.path.insert(0, generated)
    out = {}
    for name in FILES:
        module = importlib.import_module(f"braid.v1.{name}_pb2")
        for message in module.DESCRIPTOR.message_types_by_name:
            out[f"braid.v1.{message}"] = getattr(module, message)
    return out


# ---- the text of a message ----
def scalar(field, value):
    if field.type == field.TYPE_FLOAT:
        return "f:%08x" % struct.unpack("<I", struct.pack("<f", value))
    if field.type == field.TYPE_DOUBLE:
        return "d:%016x" % struct.unpack("<Q", struct.pack("<d", value))
    if field.type == field.TYPE_STRING:
        return "x:" + value.encode().hex()
    if field.type == field.TYPE_BYTES:
        return "x:" + value.hex()
    return str(int(value))


def lines_of(message, path=""):
    for field in message.DESCRIPTOR.fields:
        where = f"{path}.{field.name}" if path else field.name
        value = getattr(message, field.name)
        if field.label == field.LABEL_REPEATED:
            for i, item in enumerate(value):
                if field.type == field.TYPE_MESSAGE:
                    yield f"{where}[{i}]{{}}"
                    yield from lines_of(item, f"{where}[{i}]")
                elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
                    if field.type == field.TYPE_STRING:
                        yield f"{where}[{i}]{{}}"
                    if item:
                        yield f"{where}[{i}]={scalar(field, item)}"
                else:
                    yield f"{where}[{i}]={scalar(field, item)}"
        elif field.type == field.TYPE_MESSAGE:
            if message.HasField(field.name):
                yield f"{where}{{}}"
                yield from lines_of(value, where)
        elif value:
            yield f"{where}={scalar(field, value)}"


def text_of(message):
    return "".join(line + "\n" for line in lines_of(message))


# ---- random messages ----
BITS = {"UINT32": 32, "FIXED32": 32, "UINT64": 64, "FIXED64": 64}
SIGNED = {"INT32": 32, "SINT32": 32, "SFIXED32": 32, "INT64": 64, "SINT64": 64, "SFIXED64": 64}


def random_scalar(rng, field):
    kind = next(k[5:] for k in dir(field) if k.startswith("TYPE_") and getattr(field, k) == field.type)
    if kind in BITS:
        return rng.getrandbits(BITS[kind]) >> rng.randrange(BITS[kind])
    if kind in SIGNED:
        bits = SIGNED[kind]
        return (rng.getrandbits(bits - 1) >> rng.randrange(bits)) * rng.choice((1, -1))
    if kind == "BOOL":
        return rng.random() < 0.5
    if kind == "FLOAT":
        return struct.unpack("<f", struct.pack("<f", rng.choice((0.0, 1.5, -1e-30, float("inf"), rng.gauss(0, 9)))))[0]
    if kind == "DOUBLE":
        return rng.choice((0.0, 0.1, -1e-300, float("-inf"), rng.gauss(0, 9)))
    if kind == "STRING":
        return "".join(rng.choice("abcXYZ09_.- \u00e4\u20ac\n") for _ in range(rng.randrange(12)))
    if kind == "BYTES":
        return bytes(rng.getrandbits(8) for _ in range(rng.randrange(12)))
    if kind == "ENUM":
        return rng.choice(field.enum_type.values).number
    raise AssertionError(kind)


def fill(rng, message, share, depth=0):
    """Fills about `share` of the fields; of a oneof, one member."""
    chosen = {o.name: rng.choice(o.fields).name for o in message.DESCRIPTOR.oneofs}
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if (oneof is not None and chosen[oneof.name] != field.name) or rng.random() >= share:
            continue
        if field.label == field.LABEL_REPEATED:
            for _ in range(rng.randrange(1, 5)):
                if field.type == field.TYPE_MESSAGE:
                    fill(rng, getattr(message, field.name).add(), share, depth + 1)
                else:
                    getattr(message, field.name).append(random_scalar(rng, field))
        elif field.type == field.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
            fill(rng, getattr(message, field.name), share, depth + 1)
        else:
            setattr(message, field.name, random_scalar(rng, field))
    return message


# ---- commands ----
def check(types, tool, work):
    listed = subprocess.run([tool, "list"], check=True, capture_output=True, text=True).stdout.split()
    failures = [f"{name}: in the .proto, but no service reaches it" for name in set(types) - set(listed)]
    failures += [f"{name}: unknown to Python" for name in set(listed) - set(types)]
    sent = {}
    for name, cls in types.items():
        for n in range(ROUNDS):
            share = 0 if n == 0 else 1 if n % 2 else 0.6
            message = fill(random.Random(f"{name} {n}"), cls(), share)
            sent[name, n] = message
            (work / f"{name}.{n}.bin").write_bytes(message.SerializeToString())
    subprocess.run([tool, "recode", str(work)], check=True)
    for (name, n), message in sent.items():
        expected, got = text_of(message), (work / f"{name}.{n}.txt").read_text()
        if got != expected:  # Python -> ours
            failures.append(f"{name} {n}: Python means\n{expected}ours reads\n{got}")
        back = types[name]()
        back.ParseFromString((work / f"{name}.{n}.out").read_bytes())  # ours -> Python
        if text_of(back) != expected:
            failures.append(f"{name} {n}: Python means\n{expected}and reads from ours\n{text_of(back)}")
    print(f"{len(types)} messages, {len(sent)} samples each way, {len(failures)} failures")
    print("\n".join(failures[:5]))
    return 1 if failures or not sent else 0


def golden(types, tool, folder):
    """Committed files never change; a message without them gets them."""
    for name, cls in types.items():
        if not (folder / f"{name}.bin").exists():
            message = fill(random.Random(name), cls(), 1)
            (folder / f"{name}.bin").write_bytes(message.SerializeToString())
            (folder / f"{name}.txt").write_text(text_of(message))
            print("new:", name)
    return 0


def main():
    command, generated, tool, where = sys.argv[1:]
    types = message_types(generated)
    return {"check": check, "golden": golden}[command](types, tool, pathlib.Path(where))


if __name__ == "__main__":
    sys.exit(main())
