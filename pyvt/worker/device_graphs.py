"""Steps on a device: index arrays go there, decode steps run from captured graphs.

The indices of a step are copied to the device when it starts; the model's ordinary forward then
queues its kernels, and nothing waits until the step's tokens are read. A decode step of R requests
and T tokens is captured once, with head and most likely tokens, over arrays that are kept; later
steps of that shape fill those arrays and launch the graph. Replay and eager steps give the same
bits.

Dims: R requests of the step, n of them that get a token, T tokens, H hidden size, V vocabulary.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import on_host
from pyvt.dispatch.backend import Device, Plan
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.base import CausalLM
from pyvt.worker.graph_runner import MAX_PLANS, is_decode
from pyvt.worker.prepare_inputs import StepInputs

Array = np.ndarray[Any, Any]

# The arrays of a batch that vary between steps.
_INDICES = (
    "positions",
    "slot_mapping",
    "block_tables",
    "seq_lens",
    "cu_seqlens_q",
    "logits_indices",
    "initial_slots",
    "state_slots",
)


@dataclass(slots=True)
class Captured:
    """A graph with the tensors that its kernels read and write.

    Attributes:
        hidden: ``[T, H]``.
        logits: ``[T, V]``.
        num_bad: ``[T]``, logits that are not finite.
        best: ``[T]``, the most likely token behind each one.
    """

    plan: Plan
    input_ids: Any
    batch: ForwardBatch
    hidden: Any
    logits: Any
    num_bad: Any
    best: Any


@dataclass(slots=True)
class DeviceGraphs:
    """Runs the forward of steps on a device; the interface of ``GraphRunner``.

    Attributes:
        model: whose forward runs.
        max_blocks: blocks of the longest request.
        device: where the model and its KV are.
        is_enabled: whether decode steps are captured.
        num_replays: steps that a graph ran.
        num_eager_decodes: decode steps that could not be captured: none.
    """

    model: CausalLM
    max_blocks: int
    device: Device
    is_enabled: bool = True
    num_replays: int = 0
    num_eager_decodes: int = 0
    _captured: dict[tuple[int, int], Captured] = field(default_factory=dict)
    _current: Captured | None = None

    def forward(self, step: StepInputs) -> Any:
        """Return the hidden states ``[T, H]`` of a step, on the device."""
        batch = step.batch
        self._current = None
        if not self.is_enabled or not is_decode(batch):
            ids = self.device.upload(step.input_ids)
            return self.model.forward(ids, batch_on(self.device, batch))
        shape = batch.num_reqs, batch.num_tokens
        captured = self._captured.pop(shape, None)
        if captured is None:
            captured = self._capture(step)
            if len(self._captured) == MAX_PLANS:
                del self._captured[next(iter(self._captured))]
        else:
            _fill(captured, step)
            captured.plan.run()
            self.num_replays += 1
        # What was used last stands last, so the first one goes when there are too many.
        self._captured[shape] = self._current = captured
        return captured.hidden

    def logits(self, step: StepInputs, hidden: Any) -> Any:
        """Return the logits ``[n, V]`` of the step that ``forward`` ran, on the device."""
        indices = step.batch.logits_indices
        if self._current is not None and len(indices) == len(self._current.logits):
            return self._current.logits
        where = self.device.upload(indices)
        if self._current is not None:
            return ops.embedding(where, self._current.logits)
        return self.model.compute_logits(ops.embedding(where, hidden))

    def greedy_tokens(self, step: StepInputs) -> list[int] | None:
        """Return the most likely tokens of the requests of ``step``, in their order.

        None where no graph ran, or where logits are not finite: the sampler then looks itself.
        """
        captured = self._current
        if captured is None or on_host(captured.num_bad).any():
            return None
        tokens: list[int] = captured.best.tolist()
        return [tokens[i] for i in step.batch.logits_indices]

    def plan_of(self, num_reqs: int) -> Plan | None:
        """Return the graph of steps of a token of so many requests, None where there is none."""
        captured = self._captured.get((num_reqs, num_reqs))
        return None if captured is None else captured.plan

    def _capture(self, step: StepInputs) -> Captured:
        """Capture a step and run it, once: a second run would move its states on twice."""
        tables = step.batch.block_tables
        padded = np.zeros((*tables.shape[:2], self.max_blocks), np.int32)
        padded[:, :, : tables.shape[2]] = tables
        own = batch_on(self.device, replace(step.batch, block_tables=padded))
        input_ids = self.device.upload(step.input_ids)
        plan = self.device.graph()
        plan.start()
        try:
            hidden = self.model.forward(input_ids, own)
            logits = self.model.compute_logits(hidden)
            num_bad, best = ops.count_nonfinite(logits), ops.argmax(logits)
        finally:
            plan.stop()
        return Captured(plan, input_ids, own, hidden, logits, num_bad, best)


def batch_on(device: Device, batch: ForwardBatch) -> ForwardBatch:
    """Return a batch with its indices on a device."""
    found = {name: device.upload(getattr(batch, name)) for name in _INDICES}
    return replace(batch, **found)


def _fill(captured: Captured, step: StepInputs) -> None:
    """Copy what varies between steps into the tensors that the graph reads."""
    captured.input_ids.fill_from(step.input_ids)
    tables = step.batch.block_tables
    padded = np.zeros(captured.batch.block_tables.shape, np.int32)
    padded[:, :, : tables.shape[2]] = tables
    for name in _INDICES:
        array = padded if name == "block_tables" else getattr(step.batch, name)
        target: Any = getattr(captured.batch, name)
        # Rows that get a token differ from step to step; a graph makes the logits of all.
        if target.shape == array.shape:
            target.fill_from(array)
