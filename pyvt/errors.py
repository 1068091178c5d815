"""The exception tree.

Text form: ``[subject] name: expected …, got …`` and the remedy where there is one; lower case, no
full stop, values in ``repr``. Every error that pyvt raises for a caller's mistake derives from
``PyvtError``; an ``AssertionError`` is a fault of pyvt itself.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from os import PathLike


class PyvtError(Exception):
    """Base of all errors that pyvt raises on purpose."""


class ConfigError(PyvtError, ValueError):
    """A bad setting, an unknown name or an impossible combination; ``field`` names it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ShapeError(PyvtError, ValueError):
    """The caller broke an op's contract of shapes or layout."""


class DTypeError(PyvtError, TypeError):
    """The caller broke an op's contract of dtypes."""


class UnsupportedError(PyvtError, NotImplementedError):
    """A valid request for which no kernel, format or feature exists; the text lists what does."""


class CheckpointError(PyvtError, ValueError):
    """A model file or tensor is truncated, overlapping, unknown, missing or given twice."""

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        tensor: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = None if path is None else str(path)
        self.tensor = tensor


class RequestError(PyvtError, ValueError):
    """A user's request cannot be served; ``param`` names the field, ``code`` the kind."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class DownloadError(PyvtError, OSError):
    """A model could not be fetched: no source, no room, no network or a wrong checksum."""


class OutputError(PyvtError, OSError):
    """A file that was asked for could not be written: no room, or no right to do so."""


class KVTierError(PyvtError, RuntimeError):
    """A store of KV beyond the engine failed; the engine goes on as after a miss and counts it."""


class KernelError(PyvtError, RuntimeError):
    """Native code failed: a device status or an internal check."""


class OutOfMemoryError(KernelError, MemoryError):
    """A device has no room for a request; nothing was changed and the process may go on."""


class EngineDeadError(PyvtError, RuntimeError):
    """The engine has stopped after a fatal error; ``__cause__`` carries it."""


class ServerError(PyvtError):
    """A server that this process asks does not answer, or answers with an error."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the tail of an error text for an unknown name: a near miss and the valid names."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}valid names: {', '.join(names)}"
