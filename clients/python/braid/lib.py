"""libbraid.so through ctypes: structs and functions of braid.h, and nothing above them."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import threading
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, List, Optional

from .errors import LibraryNotFound, error_of

ABI_VERSION = 1
OK = 0


class Error(Structure):
    _fields_ = [("status", c_int), ("text", c_char * 508)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("coordinator", c_char_p),
        ("name", c_char_p),
        ("consistency", c_int),
        ("reduce", c_int),
        ("rank", c_int),
        ("world", c_int),
        ("connect_wait_ms", c_int64),
        ("ps_wait_ms", c_int64),
        ("part_bytes", c_size_t),
        ("restore", c_char_p),
        ("next_step", c_uint64),
        ("keep_heap", c_int),
        ("pooling", c_int),
        ("tls_ca", c_char_p),
        ("tls_cert", c_char_p),
        ("tls_key", c_char_p),
        ("tls_server_name", c_char_p),
        ("token_file", c_char_p),
        ("staleness", c_int64),
        ("wire_rows", c_char_p),
        ("wire_grads", c_char_p),
        ("wire_codec", c_char_p),
        ("steps_in_flight", c_int),
        ("reserved", c_int),
    ]


class Param(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class TableOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("dim", c_uint32),
        ("initializer", c_char_p),
        ("init_params", POINTER(Param)),
        ("n_init_params", c_size_t),
        ("seed", c_uint64),
        ("optimizer", c_char_p),
        ("opt_params", POINTER(Param)),
        ("n_opt_params", c_size_t),
        ("dtype", c_char_p),
        ("bad_gradient", c_char_p),
        ("max_gradient_norm", c_double),
        ("admission", c_char_p),
        ("eviction", c_char_p),
        ("durability", c_char_p),
        ("init_file", c_char_p),
    ]


class FeatureStruct(Structure):
    _fields_ = [
        ("table", c_void_p),
        ("ids", c_void_p),
        ("n_ids", c_size_t),
        ("offsets", c_void_p),
        ("n_bags", c_size_t),
        ("weights", c_void_p),
        ("mode", c_int),
        ("first_n", c_int),
    ]


class RrefOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("feature", POINTER(FeatureStruct)),
        ("server", c_uint32),
        ("reserved", c_uint32),
    ]


class Stat(Structure):
    _fields_ = [
        ("server", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char_p),
        ("value", c_double),
    ]


_ERR = POINTER(Error)
_OUT = POINTER(c_void_p)
# name: result, arguments
_FUNCTIONS = {
    "version": (c_char_p, []),
    "abi_version": (c_int, []),
    "status_name": (c_char_p, [c_int]),
    "status_text": (c_char_p, [c_int]),
    "log_level": (c_int, [c_char_p]),
    "connect": (c_int, [POINTER(Options), _OUT, _ERR]),
    "close": (None, [c_void_p]),
    "n_servers": (c_size_t, [c_void_p]),
    "last_step": (c_uint64, [c_void_p]),
    "job_open": (c_int, [c_void_p, POINTER(c_uint64), _ERR]),
    "job_join": (c_int, [c_void_p, c_uint64, _ERR]),
    "table_create": (c_int, [c_void_p, POINTER(TableOptions), _OUT, _ERR]),
    "table_open": (c_int, [c_void_p, c_char_p, _OUT, _ERR]),
    "table_name": (c_char_p, [c_void_p]),
    "table_dim": (c_uint32, [c_void_p]),
    "table_state_elems": (c_uint64, [c_void_p]),
    "lookup": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, _ERR]),
    "push": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_double, _ERR]),
    "assign": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, _ERR]),
    "export_open": (c_int, [c_void_p, c_int, _OUT, _ERR]),
    "export_next": (
        c_int,
        [
            c_void_p,
            POINTER(POINTER(c_uint64)),
            POINTER(POINTER(c_float)),
            POINTER(POINTER(c_float)),
            POINTER(c_size_t),
            _ERR,
        ],
    ),
    "export_close": (None, [c_void_p]),
    "batch_new": (c_int, [c_void_p, POINTER(FeatureStruct), c_size_t, _OUT, _ERR]),
    "batch_fetch": (c_int, [c_void_p, _ERR]),
    "batch_free": (None, [c_void_p]),
    "batch_unique": (c_size_t, [c_void_p]),
    "forward": (c_int, [c_void_p, POINTER(c_void_p), _ERR]),
    "backward": (c_int, [c_void_p, c_void_p, POINTER(c_void_p), _ERR]),
    "context_new": (c_int, [c_void_p, _OUT, _ERR]),
    "context_free": (None, [c_void_p]),
    "context_add": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, _ERR]),
    "context_clear": (None, [c_void_p]),
    "step": (c_int, [c_void_p, c_double, _ERR]),
    "wait": (c_int, [c_void_p, _ERR]),
    "rref_remote": (c_int, [c_void_p, POINTER(RrefOptions), _OUT, _ERR]),
    "rref_to_here": (c_int, [c_void_p, c_void_p, c_size_t, _ERR]),
    "rref_owner": (c_char_p, [c_void_p]),
    "rref_free": (None, [c_void_p]),
    "rref_keep_alive": (c_int, [c_void_p, _ERR]),
    "key_server": (c_uint32, [c_void_p, c_uint64]),
    "checkpoint": (c_int, [c_void_p, c_char_p, _ERR]),
    "checkpoint_delete": (c_int, [c_void_p, c_char_p, _ERR]),
    "param_hash": (c_int, [c_void_p, POINTER(c_uint64), POINTER(c_uint64), _ERR]),
    "stats": (c_int, [c_void_p, POINTER(POINTER(Stat)), POINTER(c_size_t), _ERR]),
    "stats_free": (None, [POINTER(Stat)]),
}

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def _candidates() -> List[str]:
    """Where libbraid.so may be, the most explicit place first."""
    named = os.environ.get("BRAID_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    found = [str(here / "libbraid.so")]
    system = ctypes.util.find_library("braid")
    if system:
        found.append(system)
    found += ["/usr/local/lib/libbraid.so.1"]
    found += [str(p / "build" / "lib" / "libbraid.so") for p in here.parents[2:3]]  # a checkout
    return found


def library() -> ctypes.CDLL:
    """The loaded library. Raises LibraryNotFound, naming every place that was tried."""
    global _library
    with _lock:
        if _library is not None:
            return _library
        tried = []
        for path in _candidates():
            try:
                loaded = ctypes.CDLL(path)
            except OSError as e:
                tried.append(f"{path} ({e})")
                continue
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, "braid_" + name)
                function.restype = result
                function.argtypes = arguments
            if loaded.braid_abi_version() != ABI_VERSION:
                raise LibraryNotFound(
                    f"{path} has ABI {loaded.braid_abi_version()}, this package needs {ABI_VERSION}"
                )
            _library = loaded
            return loaded
    raise LibraryNotFound("libbraid.so: tried " + "; ".join(tried) + "; set BRAID_LIBRARY")


def call(name: str, *arguments: Any) -> None:
    """Calls braid_<name>(..., &err) and raises what it says."""
    err = Error()
    status = getattr(library(), "braid_" + name)(*arguments, byref(err))
    if status != OK:
        raise error_of(status, err.text.decode("utf-8", "replace"))


def library_version() -> str:
    return str(library().braid_version().decode())


def set_log_level(level: str) -> None:
    """Least important line printed on stderr: "debug", "info", "warn" (default), "error"."""
    if library().braid_log_level(level.encode()) != OK:
        raise error_of(-1, f'log level "{level}": debug, info, warn or error')
