"""A whole model on a native backend, held to the reference with the same ``act``.

Three measurements over the same prompts, each fed in one prefill, with keys and values kept as the
engine keeps them on that backend, by the reference too:

1. *By call*: the backend runs the model and the reference repeats every call on the same inputs.
   No call may leave its tolerance. This is the check; the other two say what it means for text.
2. *By logits*: the reference runs the model by itself, and the argmax of each position is compared.
   With ``act="none"`` only a tie may part them. With ``q8`` the last bit of an activation decides
   now and then between two neighbouring codes, a step of 1/127 of the largest in its group; a few
   layers later other codes follow, and the rounding errors of two runs are as far from each other
   as from exact arithmetic. They are judged as two runs with quantised activations.
3. *The reference against itself*, ``q8`` only, with every embedding one unit in the last place
   larger: what (2) comes to where no kernel differs at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.config.device import auto_kv_dtype
from pyvt.dispatch import Candidate, Op, tapped, use_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.models.registry import load_model
from pyvt.tensor.dtype import F32, DType, dtype_named
from pyvt.testing.model_runs import all_hidden
from pyvt.testing.text_parity import (
    NOTHING_JUDGED,
    QUANTISED_ACTIVATIONS,
    SAME_ARITHMETIC,
    TextVerdict,
    TiePolicy,
    judge_logits,
)
from pyvt.testing.trace import Part, shadow_run
from pyvt.weights.resolve import open_model

Array = np.ndarray[Any, Any]
Print = Callable[[str], None]

ACTS: dict[str, TiePolicy] = {"none": SAME_ARITHMETIC, "q8": QUANTISED_ACTIVATIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepResult:
    """Whether all was within its bounds, and the figures in words."""

    is_good: bool
    figure: str


@dataclass(slots=True, kw_only=True)
class _Count:
    """What the prompts of one ``act`` gave so far."""

    num_calls: int = 0
    num_without_kernel: int = 0
    first: Part | None = None
    by_logits: TextVerdict = NOTHING_JUDGED
    with_itself: TextVerdict = NOTHING_JUDGED


def run_lockstep(
    path: Path, prompts: Sequence[Sequence[int]], backend: str, *, print: Print
) -> LockstepResult:
    """Run the three measurements and print a line for each ``act``.

    Args:
        path: the model, in a format that the backend multiplies by as stored.
        prompts: token ids of each prompt.
        backend: a native backend that is loaded.
        print: takes each line.
    """
    figures, is_good = [], True
    for act, policy in ACTS.items():
        use_backend(backend)
        kv_dtype = dtype_named(auto_kv_dtype(backend, F32.name, act))
        files = open_model(path)
        longest = max(map(len, prompts))
        model = load_model(files, dtype=F32, expand="never", act=act, max_positions=longest).model
        files.close()
        count = _Count()
        for ids in prompts:
            _add_prompt(count, model, list(ids), backend, kv_dtype, is_moved=act == "q8")
        problems = count.by_logits.problems(policy)
        if count.first is not None:
            problems.append(f"first at {count.first}")
        figures.append(_figure(act, count))
        print(f"lockstep, {len(prompts)} prompts: {', '.join([figures[-1], *problems])}")
        is_good &= not problems
    return LockstepResult(is_good=is_good, figure="; ".join(figures))


def _figure(act: str, count: _Count) -> str:
    calls = f"{count.num_calls:,} calls repeated, {'one' if count.first else 'none'} out of bounds"
    text = f"act={act}: {calls}; {count.by_logits} from the reference"
    if count.with_itself.num_positions:
        text += f"; {count.with_itself} when the reference's own input moves by one bit"
    return text


def _add_prompt(
    count: _Count,
    model: DecoderForCausalLM,
    ids: list[int],
    backend: str,
    kv_dtype: DType,
    *,
    is_moved: bool,
) -> None:
    shadow, logits = shadow_run(model, ids, backend, REFERENCE_BACKEND, kv_dtype)
    count.num_calls += shadow.num_compared
    count.num_without_kernel += shadow.num_without_kernel
    count.first = count.first or shadow.first
    use_backend(REFERENCE_BACKEND)
    reference = _logits(model, ids, kv_dtype)
    count.by_logits += judge_logits(logits, reference)
    if is_moved:
        with tapped(_move_embeddings):
            count.with_itself += judge_logits(_logits(model, ids, kv_dtype), reference)
    use_backend(backend)


def _move_embeddings(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
    op.run(candidate, args)
    if op.name in ("embedding", "packed_embedding", "quant_embedding"):
        args[0][...] = np.nextafter(args[0], np.float32(np.inf))


def _logits(model: DecoderForCausalLM, ids: list[int], kv_dtype: DType) -> Array:
    (hidden,) = all_hidden(model, [(np.array(ids), np.arange(len(ids)))], kv_dtype=kv_dtype)
    return model.compute_logits(hidden)
