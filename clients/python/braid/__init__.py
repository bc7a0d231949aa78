"""Train through Braid's parameter servers.

    import braid
    with braid.connect("127.0.0.1:7700") as client:
        users = client.create_table("user", 16, initializer=braid.normal(0, 0.01),
                                    optimizer=braid.adagrad(0.05))
        rows = users.lookup([1, 2, 3])          # float32 [3, 16]
        users.push([1, 2], gradients)           # one optimiser step of two rows

Several tables in one round trip, bags, and gradients that add up before the optimiser runs:
`Client.batch`, `Client.context`. For PyTorch: `braid.torch`.
"""

from .client import (
    Batch,
    Client,
    Context,
    Feature,
    Reference,
    Spec,
    Table,
    adagrad,
    adam,
    connect,
    constant,
    normal,
    sgd,
    uniform,
)
from .errors import (
    Aborted,
    BraidError,
    Denied,
    Exhausted,
    Expired,
    Fenced,
    Internal,
    InvalidArgument,
    IOFailure,
    LibraryNotFound,
    Mismatch,
    Moved,
    NoMemory,
    NotFinite,
    NotFound,
    PeerLost,
    Timeout,
    Unavailable,
    Unauthenticated,
    Unsupported,
    WrongState,
)
from .lib import library_version, set_log_level

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Batch",
    "BraidError",
    "Client",
    "Context",
    "Denied",
    "Exhausted",
    "Expired",
    "Feature",
    "Fenced",
    "IOFailure",
    "Internal",
    "InvalidArgument",
    "LibraryNotFound",
    "Mismatch",
    "Moved",
    "NoMemory",
    "NotFinite",
    "NotFound",
    "PeerLost",
    "Reference",
    "Spec",
    "Table",
    "Timeout",
    "Unavailable",
    "Unauthenticated",
    "Unsupported",
    "WrongState",
    "adagrad",
    "adam",
    "connect",
    "constant",
    "library_version",
    "normal",
    "set_log_level",
    "sgd",
    "uniform",
]
