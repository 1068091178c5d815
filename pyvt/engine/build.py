"""The composition root: from a path to an engine, and the memory plan that precedes loading.

The only place that knows files, tokenizers, models, workers and the engine at once.
"""

import os
import sys
import time
from dataclasses import dataclass, fields
from functools import cache

from pyvt import backends
from pyvt.config import Caps, EngineConfig, resolve
from pyvt.config.cache import Auto
from pyvt.config.model import ModelConfig, SamplingDefaults
from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import selected_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.engine.core import EngineCore
from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.output_processor import OutputProcessor
from pyvt.errors import CheckpointError, ConfigError, RequestError
from pyvt.log import get_logger
from pyvt.models.registry import load_model, model_class, model_config
from pyvt.quant import WeightSettings
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.tensor.blas import set_blas_threads
from pyvt.tensor.dtype import dtype_named
from pyvt.tensor.memory import available_host_bytes
from pyvt.tokenizer import ChatTemplate, Tokenizer, gguf_tokenizer, hf_tokenizer
from pyvt.weights.loader import Progress, decide_expand
from pyvt.weights.resolve import ModelFiles, open_model
from pyvt.worker.kv_cache import allocate_kv_cache, kv_bytes_per_token
from pyvt.worker.model_runner import ModelRunner

log = get_logger(__name__)

DEFAULT_DTYPE = "f32"

# What an interpreter, its libraries and tiles of attention take beside arrays of activations.
_FIXED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a model will take of the memory, known from file headers alone.

    Attributes:
        config: the settings, without auto.
        model_config: the model's shape.
        is_expanded: whether packed weights are widened at load.
        expand_reason: why.
        free_bytes: memory that the process may still take.
        weight_bytes: weights as they will be kept.
        activation_bytes: an estimate for the largest step.
        kv_bytes: the KV cache once all blocks are written.
    """

    config: EngineConfig
    model_config: ModelConfig
    is_expanded: bool
    expand_reason: str
    free_bytes: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int

    def summary(self) -> str:
        """Return the plan in one line."""
        parts = {
            "free": self.free_bytes,
            "weights": self.weight_bytes,
            "activations": self.activation_bytes,
            "kv": self.kv_bytes,
        }
        sizes = " ".join(f"{name}={size / 2**20:.0f}MiB" for name, size in parts.items())
        cache = self.config.cache
        return (
            f"{sizes} num_blocks={cache.num_blocks} block_size={cache.block_size} "
            f"max_model_len={self.config.max_model_len} expand={self.is_expanded} "
            f"({self.expand_reason})"
        )


@cache
def best_backend() -> str:
    """Return the best backend that loads here; says once, in the log, why a better one does not."""
    for name in backends.BACKENDS:
        reason = backends.why_not(name)
        if reason is None:
            return name
        log.warning("backend %s cannot be used, the reference computes: %s", name, reason)
    return REFERENCE_BACKEND


def _auto_backend(dtype: str) -> str:
    """Return what backend ``auto`` stands for; no native kernel computes in f64."""
    return REFERENCE_BACKEND if dtype == "f64" else best_backend()


def plan(config: EngineConfig, files: ModelFiles, *, free_bytes: int | None = None) -> Plan:
    """Return what the model will take and the config without auto; loads nothing.

    Args:
        config: the settings.
        files: the open model.
        free_bytes: memory to plan for; None asks the system and the control group.

    Raises:
        ConfigError: it does not fit; the text says by how much and what to do.
        UnsupportedError, CheckpointError: the model cannot be run.
    """
    free = available_host_bytes() if free_bytes is None else free_bytes
    shape = model_config(files)
    device = config.device
    dtype = DEFAULT_DTYPE if device.dtype == "auto" else device.dtype
    backend = _auto_backend(dtype) if device.backend == "auto" else device.backend
    settings = WeightSettings(dtype=dtype_named(dtype))
    specs = model_class(shape.architecture)(shape, settings, 1).kv_cache_specs()
    wide = settings.wide_dtype
    expand = decide_expand(device.expand, files.source, wide, backend, free_bytes=free)
    infos = [files.source.info(name) for name in files.source.names()]
    weight_bytes = sum(
        info.size * wide.block_bytes if expand.is_expanded else info.nbytes for info in infos
    )
    activation_bytes = _activation_bytes(shape, config, wide.block_bytes)
    left = max(0, free - weight_bytes - activation_bytes)
    per_token = kv_bytes_per_token(specs)
    resolved = resolve(
        config,
        Caps(
            backends=tuple(sorted(backends.available(), key=lambda name: name != backend)),
            dtype=DEFAULT_DTYPE,
            num_cores=_num_cores(),
            max_position_embeddings=shape.max_position_embeddings,
            kv_bytes_per_token=per_token,
            bytes_per_position=_bytes_per_position(shape, config, wide.block_bytes),
            kv_budget_bytes=int(left * config.cache.memory_fraction),
        ),
    )
    assert resolved.cache.num_blocks != "auto", "resolve leaves no auto"
    return Plan(
        config=resolved,
        model_config=shape,
        is_expanded=expand.is_expanded,
        expand_reason=expand.reason,
        free_bytes=free,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=resolved.cache.num_blocks * resolved.cache.block_size * per_token,
    )


def build_engine(config: EngineConfig, *, progress: Progress | None = None) -> LLMEngine:
    """Load a model and return an engine for it.

    Args:
        config: the settings; ``auto`` is resolved here.
        progress: called with the bytes of weights that are loaded and their sum.

    Raises:
        CheckpointError: the model's files are damaged or incomplete.
        ConfigError: a setting cannot be met, or memory is too small.
        UnsupportedError: the architecture, a format or the tokenizer is not supported.
    """
    start_s = time.perf_counter()
    num_threads = config.device.threads
    files = open_model(config.model)
    try:
        tokenizer = _tokenizer(files)
        chat_template = _chat_template(files, tokenizer)
        planned = plan(config, files)
        config = planned.config
        backends.load(config.device.backend)
        use_backend(config.device.backend)
        _set_threads(num_threads)
        loaded = load_model(
            files,
            planned.model_config,
            dtype=dtype_named(config.device.dtype),
            expand="always" if planned.is_expanded else "never",
            act=config.device.act,
            backend=config.device.backend,
            max_positions=int(config.max_model_len),
            progress=progress,
        )
    finally:
        files.close()
    num_blocks, block_size = int(config.cache.num_blocks), config.cache.block_size
    specs = loaded.model.kv_cache_specs()
    runner = ModelRunner(loaded.model, allocate_kv_cache(specs, num_blocks, block_size), config)
    scheduler = Scheduler(config.scheduler, KVCacheManager(num_blocks, block_size))
    core = EngineCore(scheduler, runner)
    limits = _limits(planned.model_config, tokenizer, config)
    engine = LLMEngine(
        core,
        InputProcessor(tokenizer, chat_template, limits),
        OutputProcessor(tokenizer, core.clock),
        config=config,
        default_params=default_params(planned.model_config.sampling_defaults),
        model_load_ms=(time.perf_counter() - start_s) * 1000,
    )
    log.info(
        "engine ready model=%s backend=%s dtype=%s load_ms=%.0f %s",
        files.path,
        config.device.backend,
        config.device.dtype,
        engine.model_load_ms,
        planned.summary(),
    )
    return engine


def _set_threads(num_threads: int | Auto) -> None:
    """Give the backend and BLAS the number of threads; ``auto`` leaves both as they are set up."""
    if num_threads == "auto":
        return
    set_threads = selected_backend().set_num_threads
    if set_threads is not None:
        set_threads(num_threads)
    if not set_blas_threads(num_threads) and set_threads is None:
        log.warning(
            "device.threads=%d does not reach the BLAS of this NumPy; set its own environment "
            "variable (VECLIB_MAXIMUM_THREADS, OMP_NUM_THREADS)",
            num_threads,
        )


def default_params(defaults: SamplingDefaults) -> SamplingParams:
    """Return the sampling that the model's generation config asks for.

    Raises ConfigError where it asks for an impossible value.
    """
    asked = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    try:
        return SamplingParams(**{name: value for name, value in asked.items() if value is not None})
    except RequestError as error:
        raise ConfigError(
            f"[generation_config.json] {error.param}: {error}", field=error.param
        ) from error


def _tokenizer(files: ModelFiles) -> Tokenizer:
    if files.gguf_metadata is not None:
        return gguf_tokenizer(files.gguf_metadata)
    if files.tokenizer_json is None:
        raise CheckpointError(
            f"[model] {str(files.path)!r}: expected tokenizer.json beside the weights, got no such "
            "file; download the whole repository",
            path=files.path,
        )
    config = files.tokenizer_config
    return hf_tokenizer(files.tokenizer_json, None if config is None else dict(config))


def _chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not files.chat_templates:
        return None
    return ChatTemplate.for_tokenizer(files.chat_templates, tokenizer)


def _num_cores() -> int:
    """Return the cores that this process may use; all of them where the system has no such set."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _limits(shape: ModelConfig, tokenizer: Tokenizer, config: EngineConfig) -> InputLimits:
    vocab_size = min(shape.vocab_size, tokenizer.vocab_size)
    ids = {*shape.eos_token_ids, *tokenizer.eos_token_ids}
    return InputLimits(
        vocab_size=vocab_size,
        max_model_len=int(config.max_model_len),
        eos_token_ids=frozenset(token_id for token_id in ids if token_id < vocab_size),
    )


def _bytes_per_position(shape: ModelConfig, config: EngineConfig, item_bytes: int) -> int:
    """Return the bytes of a row of the rotary table and of a token in the row of each request."""
    return shape.rope.rotary_dim * item_bytes + config.scheduler.max_num_seqs * 8


def _activation_bytes(shape: ModelConfig, config: EngineConfig, item_bytes: int) -> int:
    """Return an estimate of the arrays of the largest step, with temporaries."""
    heads = (shape.num_heads * 2 + shape.num_kv_heads * 2) * shape.head_dim
    per_token = 4 * shape.hidden_size + heads + 3 * shape.intermediate_size
    per_row = 4 * shape.vocab_size
    return _FIXED_BYTES + item_bytes * 2 * (
        config.scheduler.max_num_batched_tokens * per_token
        + config.scheduler.max_num_seqs * per_row
    )
