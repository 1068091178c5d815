"""Steps on a device: index arrays go there in one copy, decode steps run from captured graphs.

The indices of a step are copied to the device when it starts; the model's ordinary forward then
queues its kernels, and nothing waits until the step's tokens are read. A decode step is padded to
a bucket and captured once for it, with head and most likely tokens, over arrays that are kept;
later steps of that bucket fill those arrays and launch the graph. Replay and eager steps give the
same bits.

Dims: R requests of the step, n of them that get a token, T tokens (Tb of the bucket), H hidden
size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import Fetched, fetch
from pyvt.dispatch.backend import Device, Plan, TensorGroup
from pyvt.errors import OutOfMemoryError
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.base import CausalLM
from pyvt.worker.decode_buckets import ORDER, is_decode, padded, padded_places, shape_of
from pyvt.worker.graph_runner import MAX_PLANS
from pyvt.worker.input_batch import DecodeArrays
from pyvt.worker.prepare_inputs import StepInputs

Array = np.ndarray[Any, Any]

_TABLES = "block_tables"


@dataclass(slots=True)
class Decode:
    """A decode step on the device: what its kernels read and write.

    Attributes:
        group: the arrays of ``ORDER``.
        tables: what the block tables were filled from.
        plan: runs it again; None where it was not captured.
        hidden: ``[Tb, H]``.
        logits: ``[Tb, V]``.
        num_bad: ``[Tb]``, logits that are not finite.
        best: ``[Tb]``, the most likely token behind each one.
    """

    group: TensorGroup
    tables: Array
    plan: Plan | None = None
    hidden: Any = None
    logits: Any = None
    num_bad: Any = None
    best: Any = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """Arrays of the next step, made while the device computed the one before.

    Attributes:
        made_for: whose arrays they are.
        places: the same in their bucket.
    """

    made_for: DecodeArrays
    places: dict[str, Array]


@dataclass(slots=True)
class DeviceGraphs:
    """Runs the forward of steps on a device; the interface of ``GraphRunner``.

    Attributes:
        model: whose forward runs.
        max_blocks: blocks of the longest request.
        device: where the model and its KV are.
        is_enabled: whether decode steps are captured.
        num_replays: steps that a graph ran.
        num_captures: steps that were captured.
        num_prepared: decode steps whose arrays were made while the device computed.
    """

    model: CausalLM
    max_blocks: int
    device: Device
    is_enabled: bool = True
    num_replays: int = 0
    num_captures: int = 0
    num_prepared: int = 0
    _captured: dict[tuple[int, int], Decode] = field(default_factory=dict)
    _current: Decode | None = None
    _ahead: Ahead | None = None

    def forward(self, step: StepInputs) -> Any:
        """Return the hidden states ``[T, H]`` of a step, on the device."""
        self._current = None
        if not is_decode(step.batch):
            return self.model.forward(*batch_on(self.device, step.input_ids, step.batch))
        self._current = self._replayed(step) or self._run(step)
        return self._current.hidden[: step.batch.num_tokens]

    def logits(self, step: StepInputs, hidden: Any) -> Any:
        """Return the logits ``[n, V]`` of the step that ``forward`` ran, on the device."""
        indices = step.batch.logits_indices
        current = self._current
        if current is not None and len(indices) == step.batch.num_tokens:
            return current.logits[: len(indices)]
        where = self.device.upload(indices)
        if current is not None:
            return ops.embedding(where, current.logits)
        return self.model.compute_logits(ops.embedding(where, hidden))

    def start_greedy(self, step: StepInputs) -> Fetched | None:
        """Start to fetch ``num_bad`` and ``best`` of a decode step, for all of its tokens.

        None for another step.
        """
        current = self._current
        if current is None:
            return None
        count = step.batch.num_tokens
        return fetch([current.num_bad[:count], current.best[:count]])

    def prepare(self, following: DecodeArrays | None) -> None:
        """Make the arrays of the step behind this one, as far as its tokens do not decide them.

        Called once the work of a step is queued and before anybody waits for it. Another step than
        the one that was foreseen makes its own.
        """
        self._ahead = None
        if following is not None and self._current is not None:
            starts = np.arange(len(following.positions) + 1, dtype=np.int32)
            each = (following.positions, following.slot_mapping, following.seq_lens, starts)
            self._ahead = Ahead(following, padded_places(*each))

    def _padded(self, step: StepInputs) -> dict[str, Array]:
        """Return the arrays of a decode step in its bucket."""
        ahead = self._ahead
        places = None
        if ahead is not None and ahead.made_for.positions is step.batch.positions:
            places = ahead.places
            self.num_prepared += 1
        return padded(step.input_ids, step.batch, self.max_blocks, places)

    def plan_of(self, num_reqs: int) -> Plan | None:
        """Return the graph of steps of a token of so many requests, None where there is none."""
        captured = self._captured.get(shape_of(num_reqs, num_reqs))
        return None if captured is None else captured.plan

    def _replayed(self, step: StepInputs) -> Decode | None:
        """Run a step that was captured; return it, None where there is no graph of its bucket."""
        batch = step.batch
        shape = shape_of(batch.num_reqs, batch.num_tokens)
        captured = self._captured.pop(shape, None) if self.is_enabled else None
        if captured is None or captured.plan is None:
            return None
        # What was used last stands last, so the first one goes when there are too many.
        self._captured[shape] = captured
        arrays = self._padded(step)
        # While the same requests decode in the blocks that they have, these are the same.
        is_same = captured.tables is batch.block_tables
        names = [name for name in ORDER if name != _TABLES or not is_same]
        captured.group.fill([arrays[name] for name in names])
        captured.tables = batch.block_tables
        captured.plan.run()
        self.num_replays += 1
        return captured

    def _run(self, step: StepInputs) -> Decode:
        """Run a step, once: a second run would move its states on twice. It is captured."""
        batch = step.batch
        arrays = self._padded(step)
        group = self.device.upload_together(list(arrays.values()))
        made = Decode(group, batch.block_tables)
        input_ids, *tensors = group.tensors
        own = replace(batch, **dict(zip(ORDER[1:], tensors, strict=True)))

        def compute() -> None:
            made.hidden = self.model.forward(input_ids, own)
            made.logits = self.model.compute_logits(made.hidden)
            made.num_bad, made.best = ops.count_nonfinite(made.logits), ops.argmax(made.logits)

        if not self.is_enabled:
            compute()
            return made
        made.plan = self._capture(compute)
        self.num_captures += 1
        if len(self._captured) == MAX_PLANS:
            del self._captured[next(iter(self._captured))]
        self._captured[shape_of(batch.num_reqs, batch.num_tokens)] = made
        return made

    def _capture(self, compute: Callable[[], None]) -> Plan:
        """Return the graph of what ``compute`` queues; it has run once.

        Where memory is short the graphs of other buckets are given up first.
        """
        while True:
            plan = self.device.graph()
            plan.start()
            try:
                compute()
            except OutOfMemoryError:
                plan.abandon()
                if not self._captured:
                    raise
                self._captured.clear()
                continue
            except BaseException:
                plan.abandon()
                raise
            plan.stop()
            return plan


def batch_on(device: Device, input_ids: Array, batch: ForwardBatch) -> tuple[Any, ForwardBatch]:
    """Return the tokens of a step and its batch on a device, by one copy."""
    names = ORDER[1:]
    arrays = [input_ids, *(getattr(batch, name) for name in names)]
    ids, *tensors = device.upload_together(arrays).tensors
    return ids, replace(batch, **dict(zip(names, tensors, strict=True)))
