"""Requests and schedulers for the scheduler's tests, and the loop that runs them."""

from collections.abc import Callable, Sequence
from typing import Any

from pyvt.config import SchedulerConfig
from pyvt.config.cache import FULL_GROUP, CacheGroup
from pyvt.messages import EngineCoreOutput, EngineCoreRequest
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.testing.fakes import FakeModelRunner

EOS = 999


def core_request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    priority: int = 0,
    tenant: str = "",
    cache_salt: str | None = None,
    fork_of: str | None = None,
    **params: Any,
) -> EngineCoreRequest:
    """Return a request as the input processor would make it."""
    return EngineCoreRequest(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, **{"seed": 0, **params}),
        eos_token_ids=frozenset() if params.get("ignore_eos") else frozenset({EOS}),
        arrival_s=0.0,
        priority=priority,
        tenant=tenant,
        cache_salt=cache_salt,
        fork_of=fork_of,
    )


def scheduler_of(
    num_blocks: int,
    block_size: int = 4,
    *,
    groups: Sequence[CacheGroup] = (FULL_GROUP,),
    num_state_slots: int = 0,
    has_prefix_cache: bool = True,
    watermark: float = 0.0,
    connector: Any = None,
    **config: Any,
) -> Scheduler:
    """Return a scheduler over a pool of that size."""
    settings = SchedulerConfig(**config)
    manager = KVCacheManager(
        num_blocks,
        block_size,
        groups=groups,
        num_state_slots=num_state_slots,
        max_step_tokens=settings.max_prefill_chunk,
    )
    hasher = BlockHasher(block_size) if has_prefix_cache else None
    return Scheduler(settings, manager, hasher=hasher, watermark=watermark, connector=connector)


def runner_of(scheduler: Scheduler, **settings: Any) -> FakeModelRunner:
    """Return a fake runner over the same blocks."""
    manager = scheduler.kv_cache_manager
    return FakeModelRunner(
        manager.pool.num_blocks, manager.block_size, groups=manager.groups, **settings
    )


def run_step(scheduler: Scheduler, runner: FakeModelRunner) -> list[EngineCoreOutput]:
    """Run one step and check the books after it."""
    step = scheduler.schedule()
    assert step.total_num_scheduled_tokens <= scheduler.config.max_num_batched_tokens
    outputs = scheduler.update_from_output(step, runner.execute_model(step))
    scheduler.check_integrity()
    return outputs


def run_to_end(
    scheduler: Scheduler,
    runner: FakeModelRunner,
    *,
    max_steps: int = 2000,
    between: Callable[[int], None] | None = None,
) -> tuple[dict[str, list[int]], dict[str, str | None]]:
    """Run until all requests ended; return tokens and finish reasons by request id."""
    tokens: dict[str, list[int]] = {}
    reasons: dict[str, str | None] = {}
    for num_steps in range(max_steps):
        if between is not None:
            between(num_steps)
        if not scheduler.num_unfinished_requests:
            return tokens, reasons
        for output in run_step(scheduler, runner):
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
    raise AssertionError(f"not finished after {max_steps} steps")
