"""Steps of the worker, written by hand: requests, grants, and a loop that generates."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyvt.config import engine_config
from pyvt.config.cache import cache_groups
from pyvt.messages import CachedRequestData, Constraints, NewRequestData, SchedulerOutput
from pyvt.models.base import CausalLM
from pyvt.sampling_params import SamplingParams
from pyvt.worker.kv_cache import allocate_kv_cache
from pyvt.worker.model_runner import ModelRunner

BLOCK_SIZE = 4
MAX_MODEL_LEN = 64
BLOCKS_PER_REQUEST = MAX_MODEL_LEN // BLOCK_SIZE
NUM_BLOCKS = 4 * BLOCKS_PER_REQUEST


def runner_of(model: CausalLM) -> ModelRunner:
    """Return a runner with room for four requests of full length."""
    specs = model.kv_cache_specs()
    cache = allocate_kv_cache(specs, NUM_BLOCKS * len(cache_groups(specs)), BLOCK_SIZE)
    config = engine_config("tiny", max_model_len=MAX_MODEL_LEN, max_num_seqs=4)
    return ModelRunner(model, cache, config)


def blocks_of(slot: int) -> tuple[int, ...]:
    """Return the blocks of the request at one of the four slots, in a mixed order."""
    return tuple(range(slot + 1, NUM_BLOCKS + 1, 4))[::-1]


def new_request(
    request_id: str,
    prompt: Sequence[int],
    *,
    slot: int = 0,
    num_groups: int = 1,
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
    **params: Any,
) -> NewRequestData:
    """Return a request that holds all blocks it may ever need; greedy unless told.

    Blocks of the second group lie behind those of the first, and so on.
    """
    return NewRequestData(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(output),
        sampling_params=SamplingParams(**{"temperature": 0.0, "seed": 1} | params),
        eos_token_ids=frozenset(eos),
        block_ids=tuple(
            tuple(block_id + g * NUM_BLOCKS for block_id in blocks_of(slot))
            for g in range(num_groups)
        ),
        num_computed_tokens=0,
        constraints=Constraints(bad_words=tuple(map(tuple, bad_words))),
    )


def step(
    grants: Mapping[str, int],
    *,
    new: Sequence[NewRequestData] = (),
    computed: Mapping[str, int] | None = None,
    finished: Sequence[str] = (),
) -> SchedulerOutput:
    """Return a step; ``computed`` names the requests that the worker knows."""
    return SchedulerOutput(
        new_requests=tuple(new),
        cached_requests=tuple(
            CachedRequestData(request_id=name, new_block_ids=(), num_computed_tokens=count)
            for name, count in (computed or {}).items()
        ),
        num_scheduled_tokens=dict(grants),
        total_num_scheduled_tokens=sum(grants.values()),
        finished_request_ids=frozenset(finished),
    )


def generate(
    runner: ModelRunner, requests: Sequence[NewRequestData], num_tokens: int
) -> dict[str, list[int]]:
    """Return the tokens of requests that run together from one prefill on."""
    grants = {r.request_id: len(r.prompt_token_ids) + len(r.output_token_ids) for r in requests}
    output = runner.execute_model(step(grants, new=requests))
    tokens = {name: list(output.sampled_token_ids[name]) for name in grants}
    computed = dict(grants)
    for _ in range(num_tokens - 1):
        output = runner.execute_model(step(dict.fromkeys(grants, 1), computed=computed))
        for name in grants:
            tokens[name] += output.sampled_token_ids[name]
            computed[name] += 1
    return tokens
