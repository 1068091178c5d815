"""Oracles of the activation family."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _map(name: str, activation: Activation) -> Oracle:
    return Oracle(name, lambda a: {"out": activation(wide(a["x"])).numpy()})


def _gated(name: str, activation: Activation) -> Oracle:
    def run(a: Arrays) -> Arrays:
        gate, up = torch.chunk(wide(a["x"]), 2, dim=-1)
        return {"out": (activation(gate) * up).numpy()}

    return Oracle(f"{name}, torch.mul", run)


def _sigmoid_gate(a: Arrays) -> Arrays:
    return {"out": (wide(a["x"]) * wide(a["gate"]).sigmoid()).numpy()}


ORACLES = {
    "relu": _map("torch.nn.functional.relu", F.relu),
    "sigmoid": _map("torch.nn.functional.sigmoid", F.sigmoid),
    "silu": _map("torch.nn.functional.silu", F.silu),
    "gelu": _map("torch.nn.functional.gelu(approximate='tanh')", _gelu_tanh),
    "sigmoid_gate": Oracle("torch.sigmoid, torch.mul", _sigmoid_gate),
    "silu_and_mul": _gated("torch.nn.functional.silu", F.silu),
    "gelu_and_mul": _gated("torch.nn.functional.gelu(approximate='tanh')", _gelu_tanh),
}
