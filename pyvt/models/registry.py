"""The table of models, and the way from an open checkpoint to a loaded one.

A row is an architecture and the place of its class; the class is imported when it is first used.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from pyvt.config.model import ModelConfig
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import CheckpointError, UnsupportedError, did_you_mean
from pyvt.log import get_logger
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings
from pyvt.tensor.dtype import F32, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.loader import (
    ExpandDecision,
    LoadReport,
    Progress,
    check_weights,
    decide_expand,
    load_weights,
)
from pyvt.weights.resolve import ModelFiles
from pyvt.weights.source import Tensor, WeightSource

log = get_logger(__name__)

MODELS = {
    "LlamaForCausalLM": "pyvt.models.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "pyvt.models.qwen3:Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM": "pyvt.models.qwen3_moe:Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM": "pyvt.models.qwen3_5:Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration": "pyvt.models.qwen3_5:Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration": (
        "pyvt.models.qwen3_5:Qwen3_5MoeForConditionalGeneration"
    ),
}
_ROPE_FREQS = "rope_freqs.weight"
_LM_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_CHUNK_BYTES = 4 << 20
_MAX_DIVISORS = 1 << 16
_DRAFT_LAYER = re.compile(r"mtp\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run, with what its loading decided and read."""

    model: DecoderForCausalLM
    config: ModelConfig
    report: LoadReport
    expand: ExpandDecision


def model_class(architecture: str) -> type[DecoderForCausalLM]:
    """Return the class of an architecture. Raises UnsupportedError that lists the known ones."""
    if architecture not in MODELS:
        raise UnsupportedError(
            f"[models] architecture: {architecture!r} is not supported; "
            f"{did_you_mean(architecture, MODELS)}"
        )
    module, _, name = MODELS[architecture].partition(":")
    found: type[DecoderForCausalLM] = getattr(import_module(module), name)
    return found


def model_config(files: ModelFiles) -> ModelConfig:
    """Return the config of open model files, from config.json or from GGUF metadata.

    A head that the config asks for and the checkpoint lacks is taken from the embedding, and a head
    that the checkpoint has beside a tied embedding of other values is used, as transformers does;
    both with a warning. Raises CheckpointError, ConfigError or UnsupportedError.
    """
    source = files.source
    names = set(source.names())
    if files.config is not None:
        config = ModelConfig.from_hf(files.config, files.generation_config)
        if not config.tie_word_embeddings and _LM_HEAD not in names:
            log.warning("no %s in %s: the embedding is used for it", _LM_HEAD, files.path)
            config = replace(config, tie_word_embeddings=True)
        if config.tie_word_embeddings and not _is_same(source, _LM_HEAD, _EMBEDDING):
            log.warning(
                "%s differs from the tied embedding in %s: it is used", _LM_HEAD, files.path
            )
            config = replace(config, tie_word_embeddings=False)
        return _with_draft_head(config, names)
    shapes = {name: source.info(name).shape for name in names}
    divisors = _rope_divisors(source) if _ROPE_FREQS in names else None
    return ModelConfig.from_gguf(files.gguf_metadata or {}, shapes, divisors)


def _with_draft_head(config: ModelConfig, names: Iterable[str]) -> ModelConfig:
    """Return a config that counts the layers of the draft head which the checkpoint has.

    A config need not say that there is one, and some repackagers take it out.
    """
    if config.linear_attention is None:
        return config
    layers = [match[1] for match in map(_DRAFT_LAYER.match, names) if match]
    num_layers = len(set(layers))
    if num_layers < config.num_mtp_layers:
        log.warning("no draft head of %d layers: tokens cannot be drafted", config.num_mtp_layers)
    return replace(config, num_mtp_layers=num_layers)


def _is_same(source: WeightSource, name: str, other: str) -> bool:
    """Return whether two tensors have the same bytes; a missing one counts as the same."""
    if not {name, other} <= set(source.names()):
        return True
    a, b = source.info(name), source.info(other)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    pair = [_rows_of_bytes(source.get(each)) for each in (name, other)]
    step = max(1, _CHUNK_BYTES // max(1, pair[0].shape[1]))
    return all(
        np.array_equal(pair[0][start : start + step], pair[1][start : start + step])
        for start in range(0, len(pair[0]), step)
    )


def _rows_of_bytes(tensor: Tensor) -> Array:
    array = tensor.blocks if isinstance(tensor, QuantTensor) else tensor
    return array.reshape(array.shape[0], -1).view(np.uint8)


def _rope_divisors(source: WeightSource) -> list[float]:
    """Return ``rope_freqs``; its size is checked first, since it becomes a Python list."""
    info = source.info(_ROPE_FREQS)
    tensor = source.get(_ROPE_FREQS)
    if not isinstance(tensor, np.ndarray) or info.size > _MAX_DIVISORS:
        raise CheckpointError(
            f"[weights] {_ROPE_FREQS} in {str(info.path)!r}: expected at most {_MAX_DIVISORS} "
            f"numbers, got {info.dtype} {info.shape}",
            path=info.path,
            tensor=_ROPE_FREQS,
        )
    divisors: list[float] = tensor.astype(np.float64).ravel().tolist()
    return divisors


def _ignored(config: ModelConfig, extra: Iterable[str]) -> tuple[str, ...]:
    names = [*extra]
    if config.tie_word_embeddings:
        names.append(r"lm_head\.weight")
    if config.linear_attention is not None:
        # Tables of its own, or the whole head where nobody asks for drafts.
        tables = r"mtp\.(embed_tokens|lm_head|shared_head\.head)\.weight"
        names.append(tables if config.num_mtp_layers else r"mtp\..*")
    if config.rope.freq_divisors is not None:
        names.append(r"rope_freqs\.weight")
    return tuple(names)


def check_model(files: ModelFiles, config: ModelConfig) -> None:
    """Check that the tensors are those that the config asks for, without reading them.

    Raises CheckpointError: a tensor is unknown, missing or of the wrong shape or dtype.
    """
    cls = model_class(config.architecture)
    model: Any = cls(config, WeightSettings(dtype=F32), 1)
    check_weights(model, files.source, ignored=_ignored(config, cls.ignored_weights))


def load_model(
    files: ModelFiles,
    config: ModelConfig | None = None,
    *,
    dtype: DType = F32,
    expand: str = "auto",
    act: str = "none",
    backend: str = "numpy",
    has_experts_in_file: bool = False,
    max_positions: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Make the model of open files and load its weights.

    Args:
        files: the open checkpoint.
        config: its config where the caller has it, else read here.
        dtype: dtype of activations and of the KV cache.
        expand: ``auto``, ``always`` or ``never``: widen matrices once at load.
        act: ``none`` or ``q8``, for products with packed weights.
        backend: the host backend, for ``expand="auto"``.
        has_experts_in_file: whether stacks of experts stay in the mapped file.
        max_positions: the longest sequence, None for what the model allows.
        progress: called with bytes done and bytes in all.

    Raises:
        ConfigError, UnsupportedError, CheckpointError.
    """
    config = config or model_config(files)
    wide = WeightSettings(dtype=dtype).wide_dtype
    decision = decide_expand(expand, files.source, wide, backend)
    log.info("expand=%s: %s", decision.is_expanded, decision.reason)
    settings = WeightSettings(
        dtype=dtype,
        is_expanded=decision.is_expanded,
        act=act,
        has_experts_in_file=has_experts_in_file,
    )
    cls = model_class(config.architecture)
    model: Any = cls(config, settings, max_positions)
    report = load_weights(
        model,
        files.source,
        settings.convert,
        settings.prepack,
        ignored=_ignored(config, cls.ignored_weights),
        progress=progress,
    )
    for module in model.modules():
        module.after_load(settings)
    device = selected_backend().device
    if device is not None:
        for module in model.modules():
            module.place(device.place)
    packer = selected_backend().prepack
    if packer is not None:
        packer.release_rest()
    return LoadedModel(model=model, config=config, report=report, expand=decision)
