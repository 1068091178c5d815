"""Tiny models on disk and their logits, for tests and the parity runner.

Dims: T tokens, V vocabulary.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.config.cache import cache_groups, with_kv_dtype
from pyvt.config.model import FAMILIES, ModelConfig
from pyvt.dispatch import on_host
from pyvt.dispatch.backend import selected_backend
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.rotary import inverse_frequencies
from pyvt.mathutil import cdiv
from pyvt.models.base import CausalLM
from pyvt.models.registry import LoadedModel, load_model
from pyvt.tensor.dtype import F32, DType
from pyvt.testing.checkpoints import permute_qk_rows, write_gguf, write_safetensors
from pyvt.testing.hybrid_shapes import gguf_tensor, split_projections
from pyvt.testing.model_cases import (
    FAR_POSITIONS,
    Arrays,
    ModelCase,
    fused_experts,
    stacked_experts,
)
from pyvt.weights.gguf_names import FUSED_EXPERTS, gguf_name
from pyvt.weights.resolve import open_model
from pyvt.worker.device_graphs import batch_on
from pyvt.worker.kv_cache import allocate_kv_cache

Array = np.ndarray[Any, Any]
Prompt = tuple[Array, Array]
_BLOCK_SIZE = 4


_EXPERT_FORMS: dict[str, Callable[[Arrays], Arrays]] = {
    "single": lambda weights: weights,
    "stacked": stacked_experts,
    "fused": fused_experts,
}


def write_case(
    case: ModelCase,
    folder: Path,
    *,
    kind: str = "safetensors",
    dtype: DType = F32,
    parts: int = 1,
    splits_projections: bool = True,
    experts: str | None = None,
    has_no_tokenizer: bool = False,
) -> Path:
    """Write the checkpoint of a case and return its path.

    Args:
        case: the model.
        folder: made where it is missing.
        kind: ``safetensors`` or ``gguf``.
        dtype: of the matrices in the file.
        parts: shards or splits.
        splits_projections: whether a GGUF file of fused projections holds q, k, v and z apart, as
            newer converters do.
        experts: how experts are stored: ``single``, one by one; ``stacked``; or ``fused``, gate and
            up as one stack. None is what converters write: single, in GGUF stacked.
        has_no_tokenizer: whether a GGUF file says that it has none, as llama.cpp wants to read.
    """
    form = experts or ("single" if kind == "safetensors" else "stacked")
    weights = {
        name: array.astype(dtype.numpy) if array.ndim >= 2 else array
        for name, array in _EXPERT_FORMS[form](case.weights()).items()
    }
    if kind == "safetensors":
        return write_safetensors(folder, weights, case.config, shards=parts)
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig.from_hf(case.config)
    if config.linear_attention is not None and splits_projections:
        weights = split_projections(config, weights)
    tensors: dict[str, Array] = {}
    for name, array in weights.items():
        canonical, values = gguf_tensor(config, name, _gguf_order(config, name, array))
        stored = _gguf_name(config, canonical)
        assert stored is not None, f"{name}: has a name in GGUF"
        tensors[stored] = values
    if config.rope.rope_type == "llama3":
        plain = config.rope.theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        divisors = plain / inverse_frequencies(config.rope)
        tensors["rope_freqs.weight"] = divisors.astype(np.float32)
    metadata = gguf_metadata(config)
    if has_no_tokenizer:
        metadata |= {
            "tokenizer.ggml.model": "none",
            f"{FAMILIES[config.family].gguf}.vocab_size": config.vocab_size,
        }
    return write_gguf(folder / "model.gguf", metadata, tensors, splits=parts)


def _gguf_name(config: ModelConfig, name: str) -> str | None:
    """Return the GGUF name of a tensor of ``write_case``; fused experts have no canonical name."""
    architecture = FAMILIES[config.family].gguf
    fused = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj", name)
    if fused:
        return f"{FUSED_EXPERTS[architecture].format(i=fused[1])}.weight"
    canonical = f"{name}.weight" if name.endswith("_proj") else name
    return gguf_name(architecture, canonical, config.num_layers)


def _gguf_order(config: ModelConfig, name: str, array: Array) -> Array:
    if config.family == "llama" and ".q_proj." in name:
        return permute_qk_rows(array, config.num_heads)
    if config.family == "llama" and ".k_proj." in name:
        return permute_qk_rows(array, config.num_kv_heads)
    return array


def gguf_metadata(config: ModelConfig) -> dict[str, Any]:
    """Return the metadata that a converter writes for a config."""
    rope = config.rope
    keys: dict[str, Any] = {
        "block_count": config.num_layers + config.num_mtp_layers,
        **({"nextn_predict_layers": config.num_mtp_layers} if config.num_mtp_layers else {}),
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": rope.rotary_dim,
        "rope.freq_base": rope.theta,
    }
    if rope.rope_type in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope.rope_type, "rope.scaling.factor": rope.factor}
    if rope.rope_type == "yarn":
        keys["rope.scaling.original_context_length"] = rope.original_max_position_embeddings
    linear = config.linear_attention
    if linear is not None:
        keys |= {
            # Frequencies in turn belong to one of three positions, which are equal for text.
            "rope.dimension_sections": [(rope.rotary_dim // 2 + 2 - i) // 3 for i in range(3)]
            + [0],
            "ssm.conv_kernel": linear.conv_kernel,
            "ssm.state_size": linear.key_head_dim,
            "ssm.group_count": linear.num_key_heads,
            "ssm.time_step_rank": linear.num_value_heads,
            "ssm.inner_size": linear.value_size,
            "attention.recurrent_layers": [
                i in config.linear_layers for i in range(keys["block_count"])
            ],
        }
    if config.moe is not None:
        keys |= {
            "expert_count": config.moe.num_experts,
            "expert_used_count": config.moe.num_experts_per_tok,
            "expert_feed_forward_length": config.moe.moe_intermediate_size,
        }
    if config.moe is not None and config.moe.shared_expert_intermediate_size is not None:
        keys["expert_shared_feed_forward_length"] = config.moe.shared_expert_intermediate_size
    architecture = FAMILIES[config.family].gguf
    return {"general.architecture": architecture} | {
        f"{architecture}.{name}": value for name, value in keys.items()
    }


def load_case(
    path: Path, *, dtype: DType = F32, expand: str = "always", act: str = "none"
) -> LoadedModel:
    """Load a checkpoint of ``write_case``, for positions up to the largest of a case's prompts."""
    return load_model(
        open_model(path), dtype=dtype, expand=expand, act=act, max_positions=max(FAR_POSITIONS) + 1
    )


def all_logits(
    model: CausalLM, sequences: Sequence[Prompt], steps: Sequence[Sequence[int]] | None = None
) -> list[Array]:
    """Return the logits ``[T, V]`` of every position of each sequence; see ``all_hidden``."""
    device = selected_backend().device
    place = np.asarray if device is None else device.upload
    return [
        on_host(model.compute_logits(place(hidden)))
        for hidden in all_hidden(model, sequences, steps)
    ]


def all_hidden(
    model: CausalLM,
    sequences: Sequence[Prompt],
    steps: Sequence[Sequence[int]] | None = None,
    *,
    block_size: int = _BLOCK_SIZE,
    kv_dtype: DType | None = None,
) -> list[Array]:
    """Return the last hidden states ``[T, H]`` of each sequence, ``(ids, positions)``.

    ``steps`` says how many tokens of each sequence a forward pass takes, pass by pass; without it
    all tokens of all sequences run in one. Blocks of the KV cache are dealt in a mixed order. Keys
    and values are kept in ``kv_dtype``, None for that of activations.
    """
    lengths = [len(ids) for ids, _ in sequences]
    steps = steps or [lengths]
    width = cdiv(max(lengths), block_size)
    num_blocks = width * len(sequences)
    order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32) + 1
    tables = order.reshape(len(sequences), width)
    specs = model.kv_cache_specs()
    if kv_dtype is not None:
        specs = with_kv_dtype(specs, kv_dtype)
    num_groups = len(cache_groups(specs))
    cache = allocate_kv_cache(specs, num_blocks * num_groups, block_size, len(sequences))
    pool_slots = num_blocks * block_size  # of each group: its blocks lie behind those before it
    done = [0] * len(sequences)
    rows: list[list[Array]] = [[] for _ in sequences]
    for step in steps:
        taken = [i for i, count in enumerate(step) if count]
        spans = [(i, done[i], done[i] + step[i]) for i in taken]
        ids = np.concatenate([sequences[i][0][a:b] for i, a, b in spans])
        positions = np.concatenate([sequences[i][1][a:b] for i, a, b in spans])
        slots = [tables[i][np.arange(a, b) // block_size] for i, a, b in spans]
        offsets = [np.arange(a, b) % block_size for _, a, b in spans]
        mapping = np.concatenate(slots).astype(np.int64) * block_size + np.concatenate(offsets)
        cu_seqlens_q = np.cumsum([0, *(step[i] for i in taken)]).astype(np.int32)
        state_slots = np.full(len(ids), -1, np.int32)
        state_slots[cu_seqlens_q[1:] - 1] = [i + 1 for i in taken]
        batch = ForwardBatch(
            num_tokens=len(ids),
            num_reqs=len(taken),
            max_seqlen_q=max(step),
            max_seq_len=max(b for _, _, b in spans),
            positions=positions.astype(np.int64),
            slot_mapping=np.stack([mapping + g * pool_slots for g in range(num_groups)]),
            block_tables=np.stack([tables[taken] + g * num_blocks for g in range(num_groups)]),
            seq_lens=np.array([b for _, _, b in spans], np.int32),
            cu_seqlens_q=cu_seqlens_q,
            logits_indices=np.arange(len(ids), dtype=np.int32),
            kv_caches=cache.layers,
            layer_groups=cache.layer_groups,
            initial_slots=np.array([i + 1 if done[i] else -1 for i in taken], np.int32),
            state_slots=state_slots,
        )
        hidden = _forward(model, ids.astype(np.int64), batch)
        for (i, a, b), part in zip(
            spans, np.split(hidden, batch.cu_seqlens_q[1:-1].tolist()), strict=True
        ):
            rows[i].append(part)
            done[i] += b - a
    return [np.concatenate(parts) for parts in rows]


def _forward(model: CausalLM, input_ids: Array, batch: ForwardBatch) -> Array:
    """Return the hidden states of a step as a host array, wherever the model is."""
    device = selected_backend().device
    if device is None:
        return model.forward(input_ids, batch)
    hidden: Array = on_host(model.forward(*batch_on(device, input_ids, batch)))
    return hidden
