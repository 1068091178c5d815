"""The largest steps of a model on a device, run once before its KV exists, to see what they take.

Dims: T tokens, R requests, V vocabulary.
"""

from typing import Any

import numpy as np

from pyvt import ops
from pyvt.config import EngineConfig
from pyvt.config.cache import LayerSpec
from pyvt.config.speculative import MTP_METHOD
from pyvt.dispatch.backend import Device
from pyvt.layers.forward_batch import NO_SLOTS, ForwardBatch
from pyvt.mathutil import cdiv
from pyvt.models.base import CausalLM
from pyvt.worker.decode_buckets import MAX_TOKENS
from pyvt.worker.device_graphs import DeviceGraphs, batch_on
from pyvt.worker.kv_cache import KVCache, allocate_kv_cache
from pyvt.worker.prepare_inputs import StepInputs

Array = np.ndarray[Any, Any]

# For captured steps of other sizes, and buffers that fit none of another step's.
_RESERVE_BYTES = 16 << 20


def workspace_bytes(
    model: CausalLM, device: Device, specs: tuple[LayerSpec, ...], config: EngineConfig
) -> int:
    """Return the memory that the largest steps take beside weights and KV.

    Nothing is written: KV goes to slot −1, and no state is kept. What is measured are the bytes
    that the device has less: activations, workspaces of kernels, captured steps, and what the
    driver takes when a kernel first runs. A reserve is added for what later steps need beside them.

    Args:
        model: a loaded model.
        device: where it is.
        specs: what its layers keep.
        config: resolved settings.

    Raises:
        OutOfMemoryError: the device is too small for them.
    """
    before, _ = device.memory()
    cache = allocate_kv_cache(specs, 1, config.cache.block_size, 1)
    max_reqs, longest = config.scheduler.max_num_seqs, int(config.max_model_len)
    chunk = min(config.scheduler.max_prefill_chunk, longest)
    num_tokens = min(config.scheduler.max_num_batched_tokens, max_reqs * chunk)
    prefill = _step(cache, _lengths(num_tokens, chunk), config)
    hidden = model.forward(*batch_on(device, prefill.input_ids, prefill.batch))
    if config.speculative.speculation == MTP_METHOD:
        ids, batch = batch_on(device, prefill.input_ids, prefill.batch)
        model.draft(ids, hidden, batch)
    num_drafts = config.speculative.num_speculative_tokens if config.speculative.speculation else 0
    num_rows = min(max_reqs * (1 + num_drafts), num_tokens)
    _sample(model.compute_logits(hidden[:num_rows]), device)
    del hidden
    decode = _step(cache, [1] * min(max_reqs, MAX_TOKENS), config)
    graphs = DeviceGraphs(model, cdiv(longest, config.cache.block_size), device)
    for is_captured in (False, True):  # what a first run needs is not needed in a capture
        graphs.is_enabled = is_captured
        graphs.forward(decode)
    started = graphs.start_greedy(decode)
    assert started is not None, "a step of one token each is a decode step"
    started.arrays()
    after, _ = device.memory(is_trimmed=False)
    taken = max(0, before - after - cache.nbytes)
    return taken + taken // 8 + _RESERVE_BYTES


def _lengths(num_tokens: int, chunk: int) -> list[int]:
    """Return the tokens of each request of a step with so many, none with more than a chunk."""
    whole = [chunk] * (num_tokens // chunk)
    return [*whole, num_tokens % chunk] if num_tokens % chunk else whole


def _step(cache: KVCache, lengths: list[int], config: EngineConfig) -> StepInputs:
    """Return a step of requests of so many tokens, each its first ones, that keeps nothing."""
    num_reqs, num_tokens = len(lengths), sum(lengths)
    num_groups = len(cache.groups)
    has_states = any(group.kind == "state" for group in cache.groups)
    max_blocks = cdiv(int(config.max_model_len), config.cache.block_size)
    batch = ForwardBatch(
        num_tokens=num_tokens,
        num_reqs=num_reqs,
        max_seqlen_q=max(lengths),
        max_seq_len=max(lengths),
        positions=np.concatenate([np.arange(count) for count in lengths]),
        slot_mapping=np.full((num_groups, num_tokens), -1, np.int64),
        block_tables=np.zeros((num_groups, num_reqs, max_blocks), np.int32),
        seq_lens=np.array(lengths, np.int32),
        cu_seqlens_q=np.cumsum([0, *lengths], dtype=np.int32),
        logits_indices=np.arange(num_reqs, dtype=np.int32),
        kv_caches=cache.layers,
        layer_groups=cache.layer_groups,
        initial_slots=np.full(num_reqs, -1, np.int32) if has_states else NO_SLOTS,
        state_slots=np.full(num_tokens, -1, np.int32) if has_states else NO_SLOTS,
    )
    return StepInputs(input_ids=np.zeros(num_tokens, np.int64), batch=batch, requests=(), wanted=())


def _sample(logits: Any, device: Device) -> None:
    """Take what the sampler takes for rows ``[R, V]`` with every filter."""
    count = len(logits)
    warm = ops.apply_temperature(logits, device.upload(np.ones(count)))
    limits = np.full(count, 2, np.int32), np.full(count, 0.5)
    ops.apply_top_k_top_p(warm, *map(device.upload, limits), out=warm)
    where = np.zeros(count, np.uint64), np.zeros(count, np.int64)
    ops.random_sample(warm, *map(device.upload, where))
