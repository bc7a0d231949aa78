"""PyTorch modules whose rows live on Braid's parameter servers.

    client = braid.torch.connect("127.0.0.1:7700", consistency="sync")   # after init_process_group
    model = DistributedDataParallel(Net(braid.torch.EmbeddingBag(client, "user", 16)))
    for x, y in loader:
        with braid.torch.context(client) as step:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()          # dense gradients by DDP, row gradients into the context
            optimizer.step()
            step.step()              # rows: the table's optimiser, on the servers

The modules have no parameters: DDP, optimisers and state_dict() see the dense part only. The context
is captured at forward, so backward may run on any of autograd's threads. Several forwards, losses and
backwards in one context add up before the optimiser runs, as gradients do in PyTorch. In eval() or
under no_grad() no context is needed, and nothing changes on the servers.
"""

from __future__ import annotations

import contextvars
import dataclasses
import queue
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor, nn

from .client import Batch, Client, Feature, Spec, Table, adagrad, normal
from .errors import InvalidArgument, WrongState

# ids [n_bags, bag size], or (ids, offsets), or (ids, offsets, per-sample weights)
Bags = Union[Tensor, Tuple[Tensor, Tensor], Tuple[Tensor, Tensor, Optional[Tensor]]]


def connect(coordinator: str, **options: Any) -> Client:
    """A client for this rank of torch.distributed (or for one process without it): rank and world are
    taken from there, reduce is "mean" as DDP's is, and all ranks are put into one job, which fences
    older ones. Collective: every rank calls it. Options: those of braid.connect."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed:
        options = {
            "rank": torch.distributed.get_rank(),
            "world": torch.distributed.get_world_size(),
            "name": f"torch-{torch.distributed.get_rank()}",
            **options,
        }
    client = Client(coordinator, **dict({"reduce": "mean"}, **options))
    if distributed and client.world > 1:
        epoch: List[Any] = [None]
        if client.rank == 0:
            try:
                epoch = [client.open_job()]
            except Exception as e:  # the others wait for the broadcast: they get the reason
                epoch = [e]
        broadcast: Callable[..., Any] = torch.distributed.broadcast_object_list  # untyped before 2.0
        broadcast(epoch, src=0)
        if isinstance(epoch[0], Exception):
            raise epoch[0]
        if client.rank != 0:
            client.join_job(epoch[0])
    return client


# ---- context ----
class StepContext:
    """Row gradients of one step. Made by context(); ends with its `with` block."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._context = client.context()
        self._lock = threading.Lock()  # autograd runs a thread a device
        self._token: Optional[contextvars.Token[Optional["StepContext"]]] = None

    def __enter__(self) -> "StepContext":
        self._token = _current.set(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None
        self._context.close()

    def step(self, lr_scale: float = 1.0) -> None:
        """Applies the gradients that backward has brought. In sync every rank must call it; a step
        to be skipped (an overflow) is skipped by clear() on all ranks."""
        with self._lock:
            self._context.step(lr_scale)

    def clear(self) -> None:
        """Drops the gradients."""
        with self._lock:
            self._context.clear()

    def _take(self, batch: Batch, gradients: Sequence[Optional[np.ndarray[Any, Any]]]) -> None:
        with self._lock:
            self._context.backward(batch, gradients)


_current: "contextvars.ContextVar[Optional[StepContext]]" = contextvars.ContextVar(
    "braid_context", default=None
)


def context(client: Client) -> StepContext:
    """`with context(client) as step:` forwards inside it are trained by step.step()."""
    return StepContext(client)


_once: Callable[[Any], Any] = torch.autograd.function.once_differentiable  # untyped before 2.0


class _Pooled(torch.autograd.Function):
    """Rows come from the servers in forward; backward leaves their gradients in the context.
    Arguments: a tensor that wants a gradient, the StepContext, the Batch, the device of the outputs."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Tuple[Tensor, ...]:
        _, ctx.step, ctx.batch, device = args
        ctx.set_materialize_grads(False)  # an output that the loss does not use has none
        return tuple(torch.from_numpy(a).to(device) for a in ctx.batch.forward())

    @staticmethod
    @_once
    def backward(ctx: Any, *grads: Optional[Tensor]) -> Tuple[None, ...]:
        arrays = [
            None if g is None else g.detach().to("cpu", torch.float32).contiguous().numpy()
            for g in grads
        ]
        ctx.step._take(ctx.batch, arrays)
        return None, None, None, None


def _pooled(client: Client, batch: Batch, device: torch.device, training: bool) -> Tuple[Tensor, ...]:
    step = _current.get()
    wants_grad = training and torch.is_grad_enabled()
    if wants_grad and step is None:
        raise WrongState("a training forward outside braid.torch.context() (or call eval(), no_grad())")
    if wants_grad and step is not None and step.client is not client:
        raise WrongState("the context is of another client than the module")
    if not wants_grad:
        return tuple(torch.from_numpy(a).to(device) for a in batch.forward())
    anchor = torch.empty(0, requires_grad=True)  # makes autograd call backward; nobody's parameter
    out: Tuple[Tensor, ...] = _Pooled.apply(anchor, step, batch, device)
    return out


# ---- from tensors to features ----
def _numpy(t: Tensor, dtype: Any = None) -> np.ndarray[Any, Any]:
    a: np.ndarray[Any, Any] = t.detach().cpu().numpy()
    return a if dtype is None else a.astype(dtype, copy=False)


def _feature(table: Table, mode: str, bags: Bags, include_last_offset: bool, where: str) -> Feature:
    ids, offsets, weights = bags, None, None
    if not isinstance(bags, Tensor):
        ids, offsets, weights = (*bags, None, None)[:3]
    assert isinstance(ids, Tensor)
    if weights is not None and weights.requires_grad:
        raise InvalidArgument(f"{where}: per_sample_weights that require a gradient")
    if ids.dim() == 2:
        if offsets is not None:
            raise InvalidArgument(f"{where}: offsets go with 1D ids only")
        n, length = ids.shape
        starts = None if length == 1 and weights is None else np.arange(n, dtype=np.int64) * length
        flat = None if weights is None else _numpy(weights, np.float32).reshape(-1)
        return Feature(table, _numpy(ids).reshape(-1), starts, mode, flat)
    if ids.dim() != 1 or offsets is None:
        raise InvalidArgument(f"{where}: ids of {ids.dim()} dimensions need to be 2D, or 1D with offsets")
    starts = _numpy(offsets, np.int64)
    if include_last_offset:
        starts = starts[:-1]
    return Feature(
        table, _numpy(ids), starts, mode, None if weights is None else _numpy(weights, np.float32)
    )


def _device(bags: Bags) -> torch.device:
    return bags.device if isinstance(bags, Tensor) else bags[0].device


# ---- modules ----
class _Remote(nn.Module):
    """What modules with rows on the servers share: their way into and out of local weights."""

    client: Client
    tables: Dict[str, Table]

    def export_weight(self, name: str, num_embeddings: int) -> Tensor:
        """Rows 0..num_embeddings-1 of a table as a tensor, as a local nn.EmbeddingBag would have them."""
        return torch.from_numpy(self.tables[name].lookup(np.arange(num_embeddings)))

    def import_weight(self, name: str, weight: Tensor) -> None:
        """Writes rows 0..len(weight)-1; their optimiser state stays. One rank, between steps."""
        self.tables[name].assign(np.arange(len(weight)), _numpy(weight, np.float32))


class EmbeddingBag(_Remote):
    """torch.nn.EmbeddingBag with rows on the servers: any 64-bit id, no num_embeddings. Modes sum and
    mean; per_sample_weights (sum only) get no gradient."""

    def __init__(
        self,
        client: Client,
        name: str,
        embedding_dim: int,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        initializer: Spec = normal(0.0, 1.0),
        optimizer: Spec = adagrad(0.01),
        seed: int = 0,
        dtype: str = "f32",
        **table_options: Any,
    ) -> None:
        """table_options: the others of Client.create_table (durability, bad_gradient, eviction...)."""
        super().__init__()
        if mode not in ("sum", "mean", "sqrtn", "max"):
            raise InvalidArgument(f'mode "{mode}": sum, mean, sqrtn or max')
        self.client, self.mode, self.include_last_offset = client, mode, include_last_offset
        self.table = client.create_table(
            name,
            embedding_dim,
            initializer=initializer,
            optimizer=optimizer,
            seed=seed,
            dtype=dtype,
            **table_options,
        )
        self.tables = {name: self.table}

    def forward(
        self,
        input: Union[Tensor, "Prefetched"],
        offsets: Optional[Tensor] = None,
        per_sample_weights: Optional[Tensor] = None,
    ) -> Tensor:
        """input [n_bags, bag size], or [n_ids] with offsets [n_bags], or what prefetch made of them;
        returns [n_bags, embedding_dim] on input's device."""
        p = input if isinstance(input, Prefetched) else self.prefetch(input, offsets, per_sample_weights)
        return _pooled(self.client, p.batch, p.device, self.training)[0]

    def prefetch(
        self, input: Tensor, offsets: Optional[Tensor] = None, per_sample_weights: Optional[Tensor] = None
    ) -> "Prefetched":
        """As EmbeddingBagCollection.prefetch, for one table."""
        bags: Any = (input, offsets, per_sample_weights)
        f = _feature(self.table, self.mode, bags, self.include_last_offset, self.table.name)
        return _prefetch(self.client, [self.table.name], [f], input.device)

    def extra_repr(self) -> str:
        return f"{self.table.name}, {self.table.dim}, mode={self.mode}"


@dataclasses.dataclass(frozen=True)
class BagConfig:
    """A table and the features that look into it."""

    name: str
    embedding_dim: int
    features: Sequence[str]
    mode: str = "sum"
    initializer: Spec = normal(0.0, 0.01)
    optimizer: Spec = adagrad(0.01)
    seed: int = 0
    dtype: str = "f32"
    table_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The others of Client.create_table (durability, bad_gradient, eviction...)."""


@dataclasses.dataclass
class Prefetched:
    """What prefetch made; forward takes it in place of the features."""

    names: List[str]
    batch: Batch
    device: torch.device


def _prefetch(
    client: Client, names: List[str], features: Sequence[Feature], device: torch.device
) -> Prefetched:
    batch = client.batch(features)
    if client.consistency == "async":
        batch.fetch()
    return Prefetched(names, batch, device)


class EmbeddingBagCollection(_Remote):
    """Many features in one round trip: one request a server, whatever the number of tables."""

    def __init__(self, client: Client, configs: Sequence[BagConfig]) -> None:
        super().__init__()
        self.client, self.configs = client, list(configs)
        self.tables = {}
        self._of: Dict[str, Tuple[Table, str]] = {}
        for c in self.configs:
            self.tables[c.name] = client.create_table(
                c.name,
                c.embedding_dim,
                initializer=c.initializer,
                optimizer=c.optimizer,
                seed=c.seed,
                dtype=c.dtype,
                **c.table_options,
            )
            for feature in c.features:
                if feature in self._of:
                    raise InvalidArgument(f"feature {feature} is in two tables")
                self._of[feature] = (self.tables[c.name], c.mode)

    def prefetch(self, features: Mapping[str, Bags]) -> Prefetched:
        """Deduplicates the ids and, in async, asks for the rows already; from any thread. In sync the
        rows of the next step do not exist before this one has ended (in bounded they may not):
        forward asks for them."""
        unknown = set(features) - set(self._of)
        if unknown or not features:
            raise InvalidArgument(f"features {sorted(unknown)} are in no table" if unknown else "no features")
        names = list(features)
        made = [_feature(*self._of[name], features[name], False, name) for name in names]
        return _prefetch(self.client, names, made, _device(features[names[0]]))

    def forward(self, features: Union[Prefetched, Mapping[str, Bags]]) -> Dict[str, Tensor]:
        """Feature name -> [n_bags, embedding_dim]."""
        p = features if isinstance(features, Prefetched) else self.prefetch(features)
        return dict(zip(p.names, _pooled(self.client, p.batch, p.device, self.training)))

    def extra_repr(self) -> str:
        return ", ".join(f"{c.name}({c.embedding_dim}): {'+'.join(c.features)}" for c in self.configs)


def prefetching(
    items: Iterable[Any],
    module: Union[EmbeddingBag, EmbeddingBagCollection],
    features_of: Callable[[Any], Any],
    depth: int = 2,
) -> Iterator[Tuple[Any, Prefetched]]:
    """(item, prefetched) of every item, prepared up to `depth` ahead on a thread of its own."""
    ready: "queue.Queue[Any]" = queue.Queue(depth)
    stopped, end = threading.Event(), object()

    def put(value: Any) -> None:
        while not stopped.is_set():
            try:
                ready.put(value, timeout=0.1)
                return
            except queue.Full:
                pass

    def run() -> None:
        try:
            for item in items:
                put((item, module.prefetch(features_of(item))))
                if stopped.is_set():
                    return
            put(end)
        except BaseException as e:  # raised where the items are used
            put(e)

    thread = threading.Thread(target=run, name="braid-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            value = ready.get()
            if value is end:
                return
            if isinstance(value, BaseException):
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()


def export_state_dict(model: nn.Module, num_embeddings: Mapping[str, int]) -> Dict[str, Tensor]:
    """model.state_dict(), and for each EmbeddingBag in it rows 0..n-1 as "<its place>.weight" (a
    collection: "<its place>.<table>.weight"), so that a copy of the model with local
    nn.EmbeddingBag loads it. num_embeddings: by table name."""
    state = dict(model.state_dict())
    for place, module in model.named_modules():
        if isinstance(module, _Remote):
            for name in module.tables:
                parts = [place] if isinstance(module, EmbeddingBag) else [place, name]
                key = ".".join([p for p in parts if p] + ["weight"])
                state[key] = module.export_weight(name, num_embeddings[name])
    return state
