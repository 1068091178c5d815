"""Module: a tree of layers whose paths are the names of a checkpoint.

A module's attributes that are modules, lists of modules or parameters are its children, in the
order of assignment. The path of a parameter is the dotted names of the attributes that lead to it,
and then the name of its slot: ``model.layers.0.self_attn.q_proj.weight``. A module with
``is_named = False`` adds no name: a fused layer stands for several names of its parent.
"""

from collections.abc import Iterator
from typing import ClassVar

from pyvt.quant import WeightSettings
from pyvt.weights.param import Parameter, ParamSlot, Put


class Module:
    """Base of everything that holds parameters."""

    is_named: ClassVar[bool] = True

    def children(self) -> Iterator[tuple[str, "Module"]]:
        """Yield each child with its name, ``layers.0`` for the first of a list ``layers``."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from (
                    (f"{name}.{i}", item)
                    for i, item in enumerate(value)
                    if isinstance(item, Module)
                )

    def modules(self) -> Iterator["Module"]:
        """Yield this module and all below it; one that occurs twice is yielded twice."""
        yield self
        for _, child in self.children():
            yield from child.modules()

    def named_slots(self, path: str = "") -> Iterator[tuple[str, Parameter, ParamSlot]]:
        """Yield every slot with the name of the checkpoint tensor that fills it.

        A parameter that may be filled by a stack has the stack's slot first.
        """
        for value in vars(self).values():
            if isinstance(value, Parameter):
                slots = value.slots if value.stack is None else (value.stack, *value.slots)
                yield from ((path + slot.name, value, slot) for slot in slots)
        for name, child in self.children():
            yield from child.named_slots(f"{path}{name}." if child.is_named else path)

    def place(self, put: Put) -> None:
        """Put what calls read where the backend computes; called after ``after_load``.

        Overridden by layers that read more than their parameters.
        """
        for value in vars(self).values():
            if isinstance(value, Parameter):
                value.parts = tuple(put(part) for part in value.parts)

    def after_load(self, settings: WeightSettings) -> None:
        """Prepare for calls; runs once on every module when all parameters are full.

        Overridden by layers that choose a method or drop a parameter's parts.
        """
