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
    level = envs.PYVT_LOG_LEVEL.get()
    levels = logging.getLevelNamesMapping()
    root.setLevel(levels.get(level.upper(), logging.WARNING))
    root.propagate = False
    if level.upper() not in levels:
        known = ", ".join(name.lower() for name in levels)
        root.warning("PYVT_LOG_LEVEL=%s is unknown, taken as warning; known: %s", level, known)
    return root


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; pass ``__name__``."""
    _root()
    return logging.getLogger(name)
