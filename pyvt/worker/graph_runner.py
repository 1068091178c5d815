"""Short steps recorded once and replayed in one call, one plan for each shape of a step.

A backend that can record gives a ``Plan``. The first decode step of R requests and T tokens runs
the model's ordinary forward and head, and the search for the most likely tokens, over arrays that
are kept, while the plan records the ops; later steps of that shape copy their indices into those
arrays and run the plan. T is R, or more where drafts are verified: ops read how the tokens are
shared out from ``cu_seqlens_q``, so R and T are all of the shape. The last tokens of a prompt, as
they are left where the prefix cache has the others, are such a step too, with logits of one row. A
step that cannot be recorded, because an op of it ran on the reference, runs eagerly ever after,
counted.

Activations come from one pool that all plans share: an array that the forward has let go of gives
its memory to the ops behind it, in the replay as in the recording.

Dims: R requests of the step, n of them that get a token, T tokens, H hidden size, V vocabulary.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import Candidate, Fetched, Op, allocating, fetch, tapped
from pyvt.dispatch.backend import Backend, Plan
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.base import CausalLM
from pyvt.tensor.buffer_pool import BufferPool
from pyvt.worker.prepare_inputs import StepInputs

Array = np.ndarray[Any, Any]

# Large batches are long anyway, and each shape has a plan of its own.
MAX_PLAN_TOKENS = 32
MAX_PLANS = 64


@dataclass(slots=True)
class Recorded:
    """A plan with the arrays that its calls read and write.

    Attributes:
        hidden: ``[T, H]``.
        logits: ``[m, V]``, of all T rows, or of those that ``batch.logits_indices`` names.
        num_bad: ``[m]``, logits that are not finite.
        best: ``[m]``, the most likely token behind each one.
        kept: what the calls refer to outside of the pool.

    The outputs lie in memory of the pool and are valid until a plan runs or is recorded.
    """

    plan: Plan
    input_ids: Array
    batch: ForwardBatch
    hidden: Array
    logits: Array
    num_bad: Array
    best: Array
    kept: list[Any]


@dataclass(slots=True)
class GraphRunner:
    """Runs the forward of steps, decode steps from plans where the backend can record.

    Attributes:
        model: whose forward runs.
        max_blocks: blocks of the longest request.
        backend: whose kernels may be recorded; one without ``make_plan`` runs all steps eagerly.
        pool: the activations of all plans.
        num_replays: steps that a plan ran.
        num_eager_decodes: decode steps that could not be recorded.
    """

    model: CausalLM
    max_blocks: int
    backend: Backend
    num_replays: int = 0
    num_eager_decodes: int = 0
    _recorded: dict[tuple[int, int, int], Recorded | None] = field(default_factory=dict)
    _replayed: Recorded | None = None
    pool: BufferPool = field(default_factory=BufferPool)
    _eager_pool: BufferPool = field(default_factory=BufferPool)
    _max_tokens: int = 0

    def forward(self, step: StepInputs) -> Array:
        """Return the hidden states ``[T, H]`` of a step; valid until the next step."""
        batch = step.batch
        self._replayed = None
        num_rows = num_head_rows(batch)
        if self.backend.make_plan is None or not num_rows:
            return self._run_eagerly(step)
        shape = batch.num_reqs, batch.num_tokens, num_rows
        if shape not in self._recorded:
            if len(self._recorded) == MAX_PLANS:
                del self._recorded[next(iter(self._recorded))]
            # A step runs once: a second run would move the states of its requests on twice.
            self._replayed, hidden = self._record(step)
            self._recorded[shape] = self._replayed
            self.num_eager_decodes += self._replayed is None
            return hidden
        # What was used last stands last, so the first one goes when there are too many.
        recorded = self._recorded[shape] = self._recorded.pop(shape)
        if recorded is None:
            self.num_eager_decodes += 1
            return self._run_eagerly(step)
        _fill(recorded, step)
        recorded.plan.run()
        self.num_replays += 1
        self._replayed = recorded
        return recorded.hidden

    def logits(self, step: StepInputs, hidden: Array) -> Array:
        """Return the logits ``[n, V]`` of the step that ``forward`` ran; valid until the next."""
        recorded, indices = self._replayed, step.batch.logits_indices
        if recorded is None:
            # Of the pool of plans, whose logits are as large.
            with allocating(self.pool.empty_if_large):
                return self.model.compute_logits(np.take(hidden, indices, axis=0))
        return recorded.logits if len(indices) == len(recorded.logits) else recorded.logits[indices]

    def start_greedy(self, step: StepInputs) -> Fetched | None:
        """Return ``num_bad`` and ``best`` of a step that a plan ran, for all of its tokens.

        None for another step.
        """
        recorded = self._replayed
        return None if recorded is None else fetch([recorded.num_bad, recorded.best])

    def _run_eagerly(self, step: StepInputs) -> Array:
        """Run a step op by op; its large arrays stay in a pool, not in a heap of holes.

        The first step of more tokens than any before has a new pool: buffers of two sizes would be
        kept for each array.
        """
        if len(step.input_ids) > self._max_tokens:
            self._max_tokens, self._eager_pool = len(step.input_ids), BufferPool()
        with allocating(self._eager_pool.empty_if_large):
            return self.model.forward(step.input_ids, step.batch)

    def plan_of(self, num_reqs: int) -> Plan | None:
        """Return the plan of steps of a token of so many requests, None where there is none."""
        recorded = self._recorded.get((num_reqs, num_reqs, num_reqs))
        return None if recorded is None else recorded.plan

    def _record(self, step: StepInputs) -> tuple[Recorded | None, Array]:
        """Run a step; return its plan, None where an op is not the backend's, and hidden states."""
        assert self.backend.make_plan is not None, "only a backend that records gets here"
        batch = step.batch
        num_groups = batch.block_tables.shape[0]
        block_tables = np.zeros((num_groups, batch.num_reqs, self.max_blocks), np.int32)
        own = replace(
            batch,
            positions=batch.positions.copy(),
            slot_mapping=batch.slot_mapping.copy(),
            block_tables=block_tables,
            seq_lens=batch.seq_lens.copy(),
            cu_seqlens_q=batch.cu_seqlens_q.copy(),
            logits_indices=batch.logits_indices.copy(),
            initial_slots=batch.initial_slots.copy(),
            state_slots=batch.state_slots.copy(),
        )
        input_ids = step.input_ids.copy()
        plan = self.backend.make_plan()
        kept: list[Any] = []
        foreign: list[str] = []
        block_tables[:, :, : batch.block_tables.shape[2]] = batch.block_tables

        def keep(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
            kept.extend(arg for arg in args if not _is_pooled(arg, self.pool))
            if candidate.backend != self.backend.name:
                foreign.append(op.name)
            op.run(candidate, args)

        plan.start()
        try:
            with tapped(keep, allocate=self.pool.empty):
                hidden = self.model.forward(input_ids, own)
                is_whole = num_head_rows(batch) == batch.num_tokens
                rows = hidden if is_whole else ops.embedding(own.logits_indices, hidden)
                logits = self.model.compute_logits(rows)
                num_bad, best = ops.count_nonfinite(logits), ops.argmax(logits)
        finally:
            plan.stop()
        if foreign:
            return None, hidden
        # A step's outputs are read before the next one, so plans share their memory too.
        recorded = Recorded(
            plan=plan,
            input_ids=input_ids,
            batch=own,
            hidden=self.pool.unclaimed(hidden),
            logits=self.pool.unclaimed(logits),
            num_bad=self.pool.unclaimed(num_bad),
            best=self.pool.unclaimed(best),
            kept=kept,
        )
        return recorded, recorded.hidden


def is_decode(batch: ForwardBatch) -> bool:
    """Whether a step is small and has a token of each request, or tokens that all get logits."""
    num_tokens = batch.num_tokens
    is_whole = num_tokens in (batch.num_reqs, len(batch.logits_indices))
    return is_whole and num_tokens <= MAX_PLAN_TOKENS


def num_head_rows(batch: ForwardBatch) -> int:
    """Return how many rows of logits the plan of a step makes; 0 for a step without a plan.

    All of a decode step or one that verifies drafts, the last one of a short end of one prompt.
    """
    if is_decode(batch):
        return batch.num_tokens
    is_end = batch.num_reqs == 1 == len(batch.logits_indices)
    return int(is_end and batch.num_tokens <= MAX_PLAN_TOKENS)


def _is_pooled(arg: Any, pool: BufferPool) -> bool:
    """Whether an argument needs not be kept: what the pool gave out, or a plain value."""
    if isinstance(arg, np.ndarray):
        return pool.owns(arg)
    return arg is None or isinstance(arg, (int, float, str))


def _fill(recorded: Recorded, step: StepInputs) -> None:
    """Copy what varies between steps into the arrays that the plan reads."""
    own, batch = recorded.batch, step.batch
    np.copyto(recorded.input_ids, step.input_ids)
    np.copyto(own.positions, batch.positions)
    np.copyto(own.slot_mapping, batch.slot_mapping)
    np.copyto(own.seq_lens, batch.seq_lens)
    np.copyto(own.initial_slots, batch.initial_slots)
    np.copyto(own.state_slots, batch.state_slots)
    np.copyto(own.cu_seqlens_q, batch.cu_seqlens_q)
    if len(recorded.logits) < batch.num_tokens:
        np.copyto(own.logits_indices, batch.logits_indices)
    own.block_tables[:, :, : batch.block_tables.shape[2]] = batch.block_tables
