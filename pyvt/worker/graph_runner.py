"""Decode steps recorded once and replayed in one call, one plan for each number of requests.

A backend that can record gives a ``Plan``. The first decode step of R requests runs the model's
ordinary forward over arrays that are kept, while the plan records its ops; later steps of R
requests copy their indices into those arrays and run the plan. A step that cannot be recorded,
because an op of it ran on the reference, runs eagerly ever after, counted.

Dims: R requests of the step, H hidden size.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyvt.dispatch import Candidate, Op, tapped
from pyvt.dispatch.backend import Backend, Plan
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.base import CausalLM
from pyvt.worker.prepare_inputs import StepInputs

Array = np.ndarray[Any, Any]

# A plan keeps the activations of all its layers, so large batches, which are long anyway, run
# eagerly.
MAX_PLAN_REQS = 16


@dataclass(slots=True)
class Recorded:
    """A plan with the arrays that its calls read and write."""

    plan: Plan
    input_ids: Array
    batch: ForwardBatch
    hidden: Array
    kept: list[Any]


@dataclass(slots=True)
class GraphRunner:
    """Runs the forward of steps, decode steps from plans where the backend can record.

    Attributes:
        model: whose forward runs.
        max_blocks: blocks of the longest request.
        backend: whose kernels may be recorded; one without ``make_plan`` runs all steps eagerly.
    """

    model: CausalLM
    max_blocks: int
    backend: Backend
    num_replays: int = 0
    num_eager_decodes: int = 0
    _recorded: dict[int, Recorded | None] = field(default_factory=dict)

    def forward(self, step: StepInputs) -> Array:
        """Return the hidden states ``[T, H]`` of a step; valid until the next step."""
        batch = step.batch
        is_decode = batch.max_seqlen_q == 1
        if self.backend.make_plan is None or not is_decode or batch.num_reqs > MAX_PLAN_REQS:
            return self.model.forward(step.input_ids, batch)
        if batch.num_reqs not in self._recorded:
            return self._record(step)
        recorded = self._recorded[batch.num_reqs]
        if recorded is None:
            self.num_eager_decodes += 1
            return self.model.forward(step.input_ids, batch)
        _fill(recorded, step)
        recorded.plan.run()
        self.num_replays += 1
        return recorded.hidden

    def _record(self, step: StepInputs) -> Array:
        """Run a step and keep its plan, or None where an op of it is not the backend's."""
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
        )
        input_ids = step.input_ids.copy()
        plan, kept, foreign = self.backend.make_plan(), [], []
        block_tables[:, :, : batch.block_tables.shape[2]] = batch.block_tables

        def keep(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
            kept.append(args)
            if candidate.backend != self.backend.name:
                foreign.append(op.name)
            op.run(candidate, args)

        plan.start()
        try:
            with tapped(keep):
                hidden = self.model.forward(input_ids, own)
        finally:
            plan.stop()
        recorded = Recorded(plan=plan, input_ids=input_ids, batch=own, hidden=hidden, kept=kept)
        self._recorded[batch.num_reqs] = None if foreign else recorded
        self.num_eager_decodes += bool(foreign)
        return hidden


def _fill(recorded: Recorded, step: StepInputs) -> None:
    """Copy what varies between steps into the arrays that the plan reads."""
    own, batch = recorded.batch, step.batch
    np.copyto(recorded.input_ids, step.input_ids)
    np.copyto(own.positions, batch.positions)
    np.copyto(own.slot_mapping, batch.slot_mapping)
    np.copyto(own.seq_lens, batch.seq_lens)
    own.block_tables[:, :, : batch.block_tables.shape[2]] = batch.block_tables
