"""The walk over a tree of modules."""

from pyvt.layers.linear import GateUpLinear, Linear
from pyvt.layers.module import Module


class _Leaf(Module):
    def __init__(self) -> None:
        self.proj = Linear(4, 6, bias=True)
        self.fused = GateUpLinear(4, 3)


class _Tree(Module):
    def __init__(self) -> None:
        self.size = 4
        self.layers = [_Leaf(), _Leaf()]
        self.head = Linear(4, 2)


def test_slots_have_the_names_of_the_checkpoint() -> None:
    names = [name for name, _, _ in _Tree().named_slots("model.")]

    assert names == [
        "model.layers.0.proj.weight",
        "model.layers.0.proj.bias",
        "model.layers.0.gate_proj.weight",
        "model.layers.0.up_proj.weight",
        "model.layers.1.proj.weight",
        "model.layers.1.proj.bias",
        "model.layers.1.gate_proj.weight",
        "model.layers.1.up_proj.weight",
        "model.head.weight",
    ]


def test_modules_are_walked_from_the_root() -> None:
    tree = _Tree()

    assert next(iter(tree.modules())) is tree
    assert len(list(tree.modules())) == 8
