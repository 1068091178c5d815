"""The op table and the checks of op arguments."""

from pyvt.dispatch.checks import Check
from pyvt.dispatch.table import (
    Candidate,
    Op,
    all_ops,
    allocating,
    chosen_backends,
    current_backend,
    declare,
    empty,
    get_op,
    known_backends,
    on_host,
    place,
    reference_call_counts,
    register,
    tapped,
    undeclared_kernels,
    use_backend,
)

__all__ = [
    "Candidate",
    "Check",
    "Op",
    "all_ops",
    "allocating",
    "chosen_backends",
    "current_backend",
    "declare",
    "empty",
    "get_op",
    "known_backends",
    "on_host",
    "place",
    "reference_call_counts",
    "register",
    "tapped",
    "undeclared_kernels",
    "use_backend",
]
