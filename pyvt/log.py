"""One log format on stderr; facts are written as ``key=value``."""

import logging
import sys
from functools import cache

from pyvt import envs

_FORMAT = "%(levelname).1s %(asctime)s %(name)s: %(message)s"


@cache
def _root() -> logging.Logger:
    root = logging.getLogger("pyvt")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(envs.PYVT_LOG_LEVEL.get().upper())
    root.propagate = False
    return root


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; pass ``__name__``."""
    _root()
    return logging.getLogger(name)
