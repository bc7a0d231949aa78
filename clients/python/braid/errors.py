"""One exception a status. Each is a BraidError, and a built-in exception where one fits."""

from __future__ import annotations

from typing import Dict, Type


class BraidError(Exception):
    """Something that the servers or the library refused; the text names the culprit."""

    status: int = -24
    """Number of braid.h (BRAID_E_...)."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class LibraryNotFound(BraidError, ImportError):
    """libbraid.so is not where it was looked for, or is of another ABI."""


class InvalidArgument(BraidError, ValueError):
    status = -1


class NoMemory(BraidError, MemoryError):
    status = -2


class IOFailure(BraidError, OSError):
    status = -3


class Timeout(BraidError, TimeoutError):
    status = -4


class Unavailable(BraidError, ConnectionError):
    """A server could not be reached within ps_wait."""

    status = -6


class PeerLost(BraidError):
    status = -7


class NotFound(BraidError, LookupError):
    status = -8


class WrongState(BraidError, RuntimeError):
    """Not allowed now."""

    status = -10


class Mismatch(BraidError, ValueError):
    """Ranks or peers disagree, e.g. the table exists with another spec."""

    status = -11


class Exhausted(BraidError):
    """The server says: slow down."""

    status = -12


class NotFinite(BraidError, ArithmeticError):
    """A gradient or row is NaN or infinite. Nothing was sent."""

    status = -15


class Moved(BraidError):
    """Slots changed their server inside a step: repeat the step."""

    status = -16


class Fenced(BraidError):
    """A newer job has been opened."""

    status = -18


class Expired(BraidError):
    status = -19


class Denied(BraidError, PermissionError):
    status = -20


class Unauthenticated(BraidError, PermissionError):
    """No token, or one that the server does not know."""

    status = -26


class Unsupported(BraidError, NotImplementedError):
    status = -21


class Aborted(BraidError):
    status = -23


class Internal(BraidError):
    status = -24


_BY_STATUS: Dict[int, Type[BraidError]] = {
    c.status: c
    for c in (
        InvalidArgument,
        NoMemory,
        IOFailure,
        Timeout,
        Unavailable,
        PeerLost,
        NotFound,
        WrongState,
        Mismatch,
        Exhausted,
        NotFinite,
        Moved,
        Fenced,
        Expired,
        Denied,
        Unauthenticated,
        Unsupported,
        Aborted,
        Internal,
    )
}


def error_of(status: int, text: str) -> BraidError:
    """The exception of a status; one without a class of its own is a plain BraidError."""
    return _BY_STATUS.get(status, BraidError)(text, status)
