"""Tables, lookups, pushes, bags and steps on numpy arrays."""

from __future__ import annotations

import atexit
import dataclasses
import os
import weakref
from ctypes import POINTER, byref, c_float, c_size_t, c_uint64, c_void_p, pointer, sizeof
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import lib
from .errors import InvalidArgument, WrongState

Keys = Union[npt.NDArray[Any], Sequence[int]]
Floats = npt.NDArray[np.float32]

_CONSISTENCY = {"async": 0, "sync": 1, "bounded": 2}
_REDUCE = {"sum": 0, "mean": 1}
_MODES = {"sum": 0, "mean": 1, "sqrtn": 2, "max": 3}
_POOLING = {"auto": 0, "client": 1, "server": 2}


@dataclasses.dataclass(frozen=True)
class Spec:
    """An initialiser or optimiser by name, with its parameters (docs/CLIENTS.md lists them)."""

    name: str
    params: Mapping[str, float] = dataclasses.field(default_factory=dict)


def uniform(low: float, high: float) -> Spec:
    return Spec("uniform", {"low": low, "high": high})


def normal(mean: float = 0.0, stddev: float = 0.01) -> Spec:
    return Spec("normal", {"mean": mean, "stddev": stddev})


def constant(value: float = 0.0) -> Spec:
    return Spec("constant", {"value": value})


def sgd(learning_rate: float, **params: float) -> Spec:
    return Spec("sgd", {"learning_rate": learning_rate, **params})


def adagrad(learning_rate: float, **params: float) -> Spec:
    return Spec("adagrad", {"learning_rate": learning_rate, **params})


def adam(learning_rate: float, **params: float) -> Spec:
    return Spec("adam", {"learning_rate": learning_rate, **params})


def _choice(what: str, value: str, choices: Mapping[str, int]) -> int:
    if value not in choices:
        raise InvalidArgument(f'{what} "{value}": one of {", ".join(choices)}')
    return choices[value]


def _path(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else os.fsencode(value)


def _keys(keys: Keys) -> npt.NDArray[np.uint64]:
    """Any integers as 64-bit patterns: -1 is key 2^64 - 1."""
    a = np.asarray(keys)
    if a.size == 0:
        return np.empty(0, np.uint64)
    if a.dtype.kind not in "iu" or a.ndim != 1:
        raise InvalidArgument(f"keys: {a.dtype} array of {a.ndim} dimensions, not a row of integers")
    if a.dtype.itemsize < 8:
        a = a.astype(np.int64)
    return np.ascontiguousarray(a).view(np.uint64)


def _rows(values: Any, n: int, dim: int, what: str) -> Floats:
    a = np.ascontiguousarray(values, dtype=np.float32)
    if a.shape != (n, dim):
        raise InvalidArgument(f"{what}: shape {a.shape}, expected ({n}, {dim})")
    return a


def _address(a: Optional[npt.NDArray[Any]]) -> Optional[int]:
    return None if a is None else a.ctypes.data


def _params(spec: Spec) -> Tuple[Any, int]:
    items = [lib.Param(k.encode(), float(v)) for k, v in spec.params.items()]
    return (lib.Param * len(items))(*items), len(items)


class _Owned:
    """A C object of a client: freed once, at the latest with the client."""

    _free_name = ""

    def __init__(self, client: "Client", handle: c_void_p) -> None:
        self._client = client
        self._handle: Optional[c_void_p] = handle
        client._children.add(self)

    @property
    def _live(self) -> c_void_p:
        self._client._live  # noqa: B018 - raises when the client cannot be used
        if self._handle is None:
            raise WrongState(f"{type(self).__name__} is closed")
        return self._handle

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self._client._is_mine:
            getattr(lib.library(), self._free_name)(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class Table:
    """An embedding table. Made by Client.create_table and Client.open_table."""

    def __init__(self, client: "Client", handle: c_void_p) -> None:
        self._client = client
        self._c = handle
        library = lib.library()
        self.name: str = library.braid_table_name(handle).decode()
        self.dim: int = library.braid_table_dim(handle)
        self.state_elems: int = library.braid_table_state_elems(handle)
        """Elements of optimiser state beside each row."""

    def __repr__(self) -> str:
        return f"braid.Table({self.name!r}, dim={self.dim})"

    @property
    def _handle(self) -> c_void_p:
        self._client._live  # noqa: B018 - raises when closed
        return self._c

    def lookup(self, keys: Keys) -> Floats:
        """Rows [n, dim]; repeats welcome. A row that was never pushed to has its initial value."""
        k = _keys(keys)
        out = np.empty((len(k), self.dim), np.float32)
        lib.call("lookup", self._handle, _address(k), len(k), _address(out))
        return out

    def push(self, keys: Keys, gradients: Any, lr_scale: float = 1.0) -> None:
        """One step: gradients [n, dim] of equal keys are summed, the optimiser runs once a row."""
        k = _keys(keys)
        g = _rows(gradients, len(k), self.dim, f"gradients of table {self.name}")
        lib.call("push", self._handle, _address(k), len(k), _address(g), lr_scale)

    def assign(self, keys: Keys, rows: Any, state: Any = None) -> None:
        """Writes rows [n, dim] (and state [n, state_elems]) as they are: for imports."""
        k = _keys(keys)
        r = _rows(rows, len(k), self.dim, f"rows of table {self.name}")
        s = None
        if state is not None:
            s = _rows(state, len(k), self.state_elems, f"state of table {self.name}")
        lib.call("assign", self._handle, _address(k), len(k), _address(r), _address(s))

    def export(
        self, with_state: bool = False
    ) -> Iterator[Tuple[npt.NDArray[np.uint64], Floats, Optional[Floats]]]:
        """Pages (keys [n], rows [n, dim], state [n, state_elems] or None) over all rows."""
        cursor = c_void_p()
        lib.call("export_open", self._handle, int(with_state), byref(cursor))
        try:
            while True:
                keys, rows = POINTER(c_uint64)(), POINTER(c_float)()
                state, n = POINTER(c_float)(), c_size_t()
                self._client._live  # noqa: B018 - it may have been closed between two pages
                lib.call("export_next", cursor, byref(keys), byref(rows), byref(state), byref(n))
                if n.value == 0:
                    return
                as_array = np.ctypeslib.as_array
                yield (
                    as_array(keys, (n.value,)).copy(),
                    as_array(rows, (n.value, self.dim)).copy(),
                    as_array(state, (n.value, self.state_elems)).copy() if with_state else None,
                )
        finally:
            lib.library().braid_export_close(cursor)


@dataclasses.dataclass
class Feature:
    """Bags of ids of one table, as torch.nn.EmbeddingBag has them: bag b is
    ids[offsets[b]:offsets[b + 1]], the last one up to the end. Without offsets every id is a bag.
    mode: sum, mean, sqrtn (the sum over the square root of the number of ids) or max. first_n: of
    each bag only the first so many ids count; 0: all."""

    table: Table
    ids: Keys
    offsets: Optional[Keys] = None
    mode: str = "sum"
    weights: Optional[Any] = None
    first_n: int = 0


class Batch(_Owned):
    """The ids of one forward pass, deduplicated. Made by Client.batch."""

    _free_name = "braid_batch_free"

    def __init__(self, client: "Client", features: Sequence[Feature]) -> None:
        structs = (lib.FeatureStruct * max(len(features), 1))()
        keep: List[Any] = []  # arrays that the call reads
        self.shapes: List[Tuple[int, int]] = []
        for s, f in zip(structs, features):
            ids = _keys(f.ids)
            offsets = None if f.offsets is None else np.ascontiguousarray(f.offsets, np.int64)
            weights = None if f.weights is None else np.ascontiguousarray(f.weights, np.float32)
            if weights is not None and weights.shape != ids.shape:
                raise InvalidArgument(f"weights: shape {weights.shape}, expected {ids.shape}")
            s.table = f.table._handle
            s.ids, s.n_ids = _address(ids), len(ids)
            s.offsets, s.weights = _address(offsets), _address(weights)
            s.n_bags = len(ids) if offsets is None else len(offsets)
            s.mode = _choice("mode", f.mode, _MODES)
            s.first_n = f.first_n
            keep += [ids, offsets, weights]
            self.shapes.append((s.n_bags, f.table.dim))
        handle = c_void_p()
        lib.call("batch_new", client._live, structs, len(features), byref(handle))
        super().__init__(client, handle)

    @property
    def n_unique(self) -> int:
        return int(lib.library().braid_batch_unique(self._live))

    def fetch(self) -> "Batch":
        """Asks for the rows and returns: forward() will find them on their way."""
        lib.call("batch_fetch", self._live)
        return self

    def forward(self) -> List[Floats]:
        """Pooled rows [n_bags, dim] of each feature; one request a server for all of them."""
        out = [np.empty(shape, np.float32) for shape in self.shapes]
        addresses = (c_void_p * max(len(out), 1))(*(a.ctypes.data for a in out))
        lib.call("forward", self._live, addresses)
        return out


class Context(_Owned):
    """Gradients on their way to one step. Made by Client.context."""

    _free_name = "braid_context_free"

    def __init__(self, client: "Client") -> None:
        handle = c_void_p()
        lib.call("context_new", client._live, byref(handle))
        super().__init__(client, handle)

    def backward(self, batch: Batch, gradients: Sequence[Optional[Any]]) -> None:
        """Takes in the gradients [n_bags, dim] of the pooled rows of each feature (None: none)."""
        if len(gradients) != len(batch.shapes):
            raise InvalidArgument(f"{len(gradients)} gradients for {len(batch.shapes)} features")
        arrays = [
            None if g is None else _rows(g, *shape, f"gradient of feature {i}")
            for i, (g, shape) in enumerate(zip(gradients, batch.shapes))
        ]
        addresses = (c_void_p * max(len(arrays), 1))(*(_address(a) for a in arrays))
        lib.call("backward", self._live, batch._live, addresses)

    def add(self, table: Table, keys: Keys, gradients: Any) -> None:
        """Row gradients without pooling."""
        k = _keys(keys)
        g = _rows(gradients, len(k), table.dim, f"gradients of table {table.name}")
        lib.call("context_add", self._live, table._handle, _address(k), len(k), _address(g))

    def step(self, lr_scale: float = 1.0) -> None:
        """Applies what has come in; the context is empty afterwards. In sync, every rank steps."""
        lib.call("step", self._live, lr_scale)

    def clear(self) -> None:
        lib.library().braid_context_clear(self._live)


class Reference(_Owned):
    """Rows or bags that a server keeps as they were when it was made. Made by Client.remote; closing
    it, or letting it go, gives the memory on the server back."""

    _free_name = "braid_rref_free"

    def __init__(self, client: "Client", feature: Feature, server: int) -> None:
        ids = _keys(feature.ids)
        offsets = None
        if feature.offsets is not None:
            offsets = np.ascontiguousarray(feature.offsets, np.int64)
        if feature.weights is not None or feature.first_n:
            raise InvalidArgument("a reference takes no weights and no first_n")
        n_bags = len(ids) if offsets is None else len(offsets)
        f = lib.FeatureStruct(
            table=feature.table._handle,
            ids=_address(ids),
            n_ids=len(ids),
            offsets=_address(offsets),
            n_bags=n_bags,
            mode=_choice("mode", feature.mode, _MODES),
        )
        if not 0 <= server < client.n_servers:
            raise InvalidArgument(f"server {server} of {client.n_servers}")
        o = lib.RrefOptions(size=sizeof(lib.RrefOptions), feature=pointer(f), server=server)
        handle = c_void_p()
        lib.call("rref_remote", client._live, byref(o), byref(handle))
        super().__init__(client, handle)
        self.shape = (n_bags, feature.table.dim)
        self.owner: str = lib.library().braid_rref_owner(handle).decode()
        """The node that keeps it, "ps-0"."""

    def to_here(self) -> Floats:
        """The value [n_bags, dim]. Waits until it is made; what was wrong with it is raised here."""
        out = np.empty(self.shape, np.float32)
        lib.call("rref_to_here", self._live, _address(out), out.size)
        return out


class Client:
    """A connection to all servers of a cluster. Any thread; connect after fork, not before."""

    def __init__(
        self,
        coordinator: str,
        *,
        name: str = "python",
        consistency: str = "async",
        reduce: str = "sum",
        rank: int = 0,
        world: int = 1,
        connect_wait: float = 30.0,
        ps_wait: float = 120.0,
        restore: Optional[str] = None,
        next_step: int = 1,
        part_bytes: int = 0,
        keep_heap: bool = True,
        tls_ca: Optional[str] = None,
        tls_cert: Optional[str] = None,
        tls_key: Optional[str] = None,
        tls_server_name: Optional[str] = None,
        token_file: Optional[str] = None,
        pooling: str = "auto",
        staleness: int = 0,
        wire_rows: str = "f32",
        wire_grads: str = "f32",
        wire_codec: str = "none",
        steps_in_flight: int = 0,
    ) -> None:
        """coordinator: "host:port" of server 0. consistency: "async", "sync" or "bounded" by
        `staleness` steps (docs/CLIENTS.md).
        reduce: "mean" for losses that are a mean over the rank's own samples. Times in seconds.
        restore, next_step: for the job that open_job (or the first step) opens.
        pooling: where bags are summed in async: "client", "server", or "auto": where fewer bytes
        are sent for it.
        wire_rows, wire_grads: how they travel: f32, f16, bf16 or i8; wire_codec: none, lz4, zstd.
        steps_in_flight (async, bounded): 1 lets step() return when the step before is applied; a
        failure is raised by the next step() or by wait().
        tls_ca, tls_cert, tls_key, token_file: paths; read again when the files change."""
        o = lib.Options(
            coordinator=coordinator.encode(),
            name=name.encode(),
            consistency=_choice("consistency", consistency, _CONSISTENCY),
            reduce=_choice("reduce", reduce, _REDUCE),
            rank=rank,
            world=world,
            connect_wait_ms=max(1, int(connect_wait * 1000)),
            ps_wait_ms=max(1, int(ps_wait * 1000)),
            restore=None if restore is None else restore.encode(),
            next_step=next_step,
            part_bytes=part_bytes,
            keep_heap=int(keep_heap),
            tls_ca=_path(tls_ca),
            tls_cert=_path(tls_cert),
            tls_key=_path(tls_key),
            tls_server_name=_path(tls_server_name),
            token_file=_path(token_file),
            pooling=_choice("pooling", pooling, _POOLING),
            staleness=staleness,
            wire_rows=wire_rows.encode(),
            wire_grads=wire_grads.encode(),
            wire_codec=wire_codec.encode(),
            steps_in_flight=steps_in_flight,
        )
        o.size = sizeof(o)
        self._handle: Optional[c_void_p] = None
        self._children: "weakref.WeakSet[_Owned]" = weakref.WeakSet()
        self.consistency, self.rank, self.world = consistency, rank, world
        self._pid = os.getpid()
        handle = c_void_p()
        lib.call("connect", byref(o), byref(handle))
        self._handle = handle
        _open_clients.add(self)

    @property
    def _is_mine(self) -> bool:
        """False in a forked child: the library's threads are not there, nothing can be freed."""
        return os.getpid() == self._pid

    @property
    def _live(self) -> c_void_p:
        if self._handle is None:
            raise WrongState("the client is closed")
        if not self._is_mine:
            raise WrongState("the client belongs to the parent process: connect after fork")
        return self._handle

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def close(self) -> None:
        """Frees everything that came from it. Twice is fine."""
        handle, self._handle = self._handle, None
        if handle is not None and self._is_mine:
            for child in list(self._children):
                child.close()
            lib.library().braid_close(handle)

    @property
    def n_servers(self) -> int:
        return int(lib.library().braid_n_servers(self._live))

    @property
    def last_step(self) -> int:
        """Last finished step of the job as this client knows it."""
        return int(lib.library().braid_last_step(self._live))

    def open_job(self) -> int:
        """Rank 0: opens the job, which fences older ones; its epoch is for the others' join_job."""
        epoch = c_uint64()
        lib.call("job_open", self._live, byref(epoch))
        return epoch.value

    def join_job(self, epoch: int) -> None:
        lib.call("job_join", self._live, epoch)

    def create_table(
        self,
        name: str,
        dim: int,
        *,
        initializer: Spec = normal(0.0, 0.01),
        optimizer: Spec = adagrad(0.01),
        seed: int = 0,
        dtype: str = "f32",
        bad_gradient: str = "reject",
        max_gradient_norm: float = 0.0,
        admission: str = "",
        eviction: str = "",
        durability: str = "journal",
        init_file: Optional[str] = None,
    ) -> Table:
        """Creates the table on all servers, or finds an equal one (else Mismatch names the field).
        dtype: of the stored weights, f32, f16, bf16 or i8; rows are float32 here whatever it is.
        bad_gradient: what becomes of a row's gradient that is not finite or longer than
        max_gradient_norm (0: no limit): reject, drop_row, clip or halt.
        admission: which pushes of a new key make its row, e.g. "frequency(count=3)"; empty: all.
        eviction: which rows go away again, e.g. "ttl(steps=100000); lru(max_rows=1e8)".
        durability: what an answered step survives: checkpoint (an orderly stop), journal (a killed
        server) or sync (a power loss).
        init_file: .tsv or .npy of `braid table export`; a table without rows begins with its rows
        (rank 0 reads it, other ranks wait), other keys as initializer says."""
        init, n_init = _params(initializer)
        opt, n_opt = _params(optimizer)
        o = lib.TableOptions(
            size=sizeof(lib.TableOptions),
            name=name.encode(),
            dim=dim,
            initializer=initializer.name.encode(),
            init_params=init,
            n_init_params=n_init,
            seed=seed,
            optimizer=optimizer.name.encode(),
            opt_params=opt,
            n_opt_params=n_opt,
            dtype=dtype.encode(),
            bad_gradient=bad_gradient.encode(),
            max_gradient_norm=max_gradient_norm,
            admission=admission.encode(),
            eviction=eviction.encode(),
            durability=durability.encode(),
            init_file=None if init_file is None else init_file.encode(),
        )
        handle = c_void_p()
        lib.call("table_create", self._live, byref(o), byref(handle))
        return Table(self, handle)

    def open_table(self, name: str) -> Table:
        handle = c_void_p()
        lib.call("table_open", self._live, name.encode(), byref(handle))
        return Table(self, handle)

    def batch(self, features: Sequence[Feature]) -> Batch:
        """Deduplicates the ids of all features; no network, any thread."""
        return Batch(self, features)

    def context(self) -> Context:
        return Context(self)

    def remote(self, feature: Feature, server: int = 0) -> Reference:
        """Asks a server to read or pool what feature says and to keep it. All ids must be of that
        server (server_of). A client that keeps references makes one or calls keep_alive at least
        once a minute."""
        return Reference(self, feature, server)

    def server_of(self, key: int) -> int:
        """Index of the server that has this key's row; no network."""
        return int(lib.library().braid_key_server(self._live, key & (2**64 - 1)))

    def keep_alive(self) -> None:
        """Tells the servers that hold references of this client that it is there."""
        lib.call("rref_keep_alive", self._live)

    def wait(self) -> None:
        """Until the steps that have returned are applied (steps_in_flight)."""
        lib.call("wait", self._live)

    def checkpoint(self, name: str) -> None:
        """Freezes all tables under this name on every server. In sync: between steps, one rank."""
        lib.call("checkpoint", self._live, name.encode())

    def delete_checkpoint(self, name: str) -> None:
        lib.call("checkpoint_delete", self._live, name.encode())

    def param_hash(self) -> Tuple[int, int]:
        """(order-free hash of all rows and their state, number of rows)"""
        value, n_rows = c_uint64(), c_uint64()
        lib.call("param_hash", self._live, byref(value), byref(n_rows))
        return value.value, n_rows.value

    def stats(self) -> List[Dict[str, float]]:
        """The metrics of each server, by name."""
        entries, n = POINTER(lib.Stat)(), c_size_t()
        lib.call("stats", self._live, byref(entries), byref(n))
        try:
            servers: List[Dict[str, float]] = [{} for _ in range(self.n_servers)]
            for i in range(n.value):
                servers[entries[i].server][entries[i].name.decode()] = entries[i].value
            return servers
        finally:
            lib.library().braid_stats_free(entries)


_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter takes modules apart under the finalisers."""
    for client in list(_open_clients):
        client.close()


def connect(coordinator: str, **options: Any) -> Client:
    """Client(coordinator, **options)"""
    return Client(coordinator, **options)
