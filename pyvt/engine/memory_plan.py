"""The memory plan: what a model will take, from the headers of its files alone.

``build_engine`` makes it before it loads anything, ``pyvt fit`` prints it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from pyvt import backends
from pyvt.config import MIN_STATE_SLOTS, Caps, EngineConfig, LayerSpec, resolve
from pyvt.config.cache import (
    block_bytes,
    blocks_of_request,
    cache_groups,
    state_bytes,
    token_specs,
    with_kv_dtype,
)
from pyvt.config.device import DeviceConfig, auto_act, auto_kv_dtype
from pyvt.config.model import ModelConfig
from pyvt.config.speculative import MTP_METHOD
from pyvt.dispatch.backend import Device, backend_named
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.errors import ConfigError
from pyvt.log import get_logger
from pyvt.models.registry import model_class, model_config
from pyvt.quant import WeightSettings
from pyvt.tensor.cores import num_usable_cores
from pyvt.tensor.dtype import BF16, SCALED_BLOCKS, dtype_named
from pyvt.tensor.memory import available_host_bytes
from pyvt.weights.loader import decide_expand
from pyvt.weights.resolve import ModelFiles
from pyvt.weights.source import TensorInfo

log = get_logger(__name__)

DEFAULT_DTYPE = "f32"

# What an interpreter, its libraries and tiles of attention take beside arrays of activations.
_FIXED_BYTES = 64 << 20
# In the name of a matrix of experts.
_EXPERTS = ".mlp.experts."
# Pairs of a token and an expert that the op of experts holds at once.
_MAX_PAIRS = 4096
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a model will take of the memory, known from file headers alone.

    Attributes:
        config: the settings, without auto.
        model_config: the model's shape.
        kv_specs: what each layer keeps of a token, or of a request.
        is_expanded: whether packed weights are widened at load.
        expand_reason: why.
        free_bytes: memory that the process may still take.
        weight_bytes: weights as they will be kept in memory.
        file_bytes: weights of experts that stay in the file, 0 where all are in memory.
        activation_bytes: an estimate for the largest step.
        kv_bytes: the KV cache once all blocks are written.
        state_bytes: the states of linear attention once all slots are written.
        weight_formats: element types of the weights in their files, most bytes first.
    """

    config: EngineConfig
    model_config: ModelConfig
    kv_specs: tuple[LayerSpec, ...]
    is_expanded: bool
    expand_reason: str
    free_bytes: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    state_bytes: int = 0
    file_bytes: int = 0
    weight_formats: tuple[str, ...] = ()

    @property
    def left_bytes(self) -> int:
        """Memory that nothing of the plan takes; below 0 where blocks were asked for by number."""
        taken = self.weight_bytes + self.activation_bytes + self.kv_bytes + self.state_bytes
        return self.free_bytes - taken

    @property
    def kv_dtype(self) -> str:
        """The name of the dtype of keys and values."""
        return token_specs(self.kv_specs)[0].dtype.name

    @property
    def num_full_requests(self) -> int:
        """Requests of ``max_model_len`` tokens that the pool holds at once."""
        cache = self.config.cache
        fitting = int(cache.num_blocks) // self._blocks_of(int(self.config.max_model_len))
        return min(fitting, int(cache.num_state_slots)) if self.state_bytes else fitting

    def as_dict(self) -> dict[str, int | str | bool]:
        """Return the plan as plain values."""
        cache = self.config.cache
        return {
            "free_bytes": self.free_bytes,
            "weight_bytes": self.weight_bytes,
            "file_bytes": self.file_bytes,
            "kv_bytes": self.kv_bytes,
            "state_bytes": self.state_bytes,
            "activation_bytes": self.activation_bytes,
            "left_bytes": self.left_bytes,
            "kv_dtype": self.kv_dtype,
            "kv_bytes_per_token": sum(s.bytes_per_token for s in token_specs(self.kv_specs)),
            "bytes_per_state": state_bytes(self.kv_specs),
            "num_groups": len(cache_groups(self.kv_specs)),
            "num_blocks": int(cache.num_blocks),
            "num_state_slots": int(cache.num_state_slots),
            "block_size": cache.block_size,
            "max_model_len": int(self.config.max_model_len),
            "num_full_requests": self.num_full_requests,
            "is_expanded": self.is_expanded,
            "expand_reason": self.expand_reason,
        }

    def summary(self) -> str:
        """Return the plan in one line."""
        parts = {
            "free": self.free_bytes,
            "weights": self.weight_bytes,
            "experts_in_file": self.file_bytes,
            "kv": self.kv_bytes,
            "states": self.state_bytes,
            "activations": self.activation_bytes,
            "left": self.left_bytes,
        }
        sizes = " ".join(f"{name}={size / _MIB:.0f}MiB" for name, size in parts.items())
        cache = self.config.cache
        return (
            f"{sizes} num_blocks={cache.num_blocks} block_size={cache.block_size} "
            f"num_state_slots={cache.num_state_slots} kv_dtype={self.kv_dtype} "
            f"max_model_len={self.config.max_model_len} "
            f"expand={self.is_expanded} ({self.expand_reason})"
        )

    def _blocks_of(self, num_tokens: int) -> int:
        return _blocks_of(self.config, self.kv_specs, num_tokens)


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


def _auto_dtype(device: DeviceConfig, files: ModelFiles) -> str:
    """Return what dtype ``auto`` stands for: f32, or bf16 where that is faster and is asked for.

    That is where most of the matrices are bf16 and not those of experts, whose products take
    activations in f32, a host backend multiplies such as they are, and ``act`` leaves open whether
    activations are rounded.
    """
    infos = [files.source.info(name) for name in files.source.names()]
    matrices = [info for info in infos if len(info.shape) > 1]
    in_bf16 = sum(
        info.size for info in matrices if info.dtype is BF16 and _EXPERTS not in info.name
    )
    if device.act == "none" or 2 * in_bf16 <= sum(info.size for info in matrices):
        return DEFAULT_DTYPE
    name = best_backend() if device.backend == "auto" else device.backend
    if name not in backends.available():
        return DEFAULT_DTYPE
    backends.load(name)
    multiplies_bf16 = backend_named(name).multiplies_bf16
    return BF16.name if multiplies_bf16 is not None and multiplies_bf16() else DEFAULT_DTYPE


def device_of(name: str) -> Device | None:
    """Return the device of a backend, None for one that computes on host arrays."""
    if name not in backends.DEVICE_BACKENDS:
        return None
    backends.load(name)
    return backend_named(name).device


def _free_bytes(name: str, config: EngineConfig) -> int:
    """Return the memory where a backend computes that the engine may take."""
    device = device_of(name)
    if device is None:
        return available_host_bytes()
    free, total = device.memory()
    return min(free, int(total * config.cache.gpu_memory_utilization))


def _usable(backend: str) -> tuple[str, ...]:
    """Return the backends that a config may name, the wanted one first."""
    on_device = (backend,) if backend in backends.DEVICE_BACKENDS else ()
    return (*on_device, *sorted(backends.available(), key=lambda name: name != backend))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a loaded model took of its device.

    Attributes:
        free_bytes: memory that the engine could take before.
        weight_bytes: weights.
        workspace_bytes: what the largest steps took beside weights and KV.
        max_positions: the longest sequence that the model was loaded for.
    """

    free_bytes: int
    weight_bytes: int
    workspace_bytes: int
    max_positions: int


def plan(
    config: EngineConfig,
    files: ModelFiles,
    *,
    free_bytes: int | None = None,
    measured: Measured | None = None,
) -> Plan:
    """Return what the model will take and the config without auto; loads nothing.

    Args:
        config: the settings.
        files: the open model.
        free_bytes: memory to plan for; None asks the device, or the system and the control group.
        measured: what the model took, in place of all estimates; for a device.

    Raises:
        ConfigError: it does not fit; the text says by how much and what to do.
        UnsupportedError, CheckpointError: the model cannot be run.
    """
    shape = _with_wanted_head(model_config(files), config)
    device = config.device
    dtype = _auto_dtype(device, files) if device.dtype == "auto" else device.dtype
    backend = _auto_backend(dtype) if device.backend == "auto" else device.backend
    given = free_bytes if measured is None else measured.free_bytes
    free = _free_bytes(backend, config) if given is None else given
    share = _share(config, backend)
    settings = WeightSettings(dtype=dtype_named(dtype))
    specs = model_class(shape.architecture)(shape, settings, 1).kv_cache_specs()
    specs = with_kv_dtype(specs, dtype_named(_kv_dtype(config, backend, dtype)))
    wide = settings.wide_dtype
    expand = decide_expand(device.expand, files.source, wide, backend, free_bytes=free)
    infos = [
        files.source.info(name)
        for name in files.source.names()
        if shape.num_mtp_layers or not name.startswith("mtp.")
    ]
    weight_bytes = sum(
        info.size * wide.block_bytes if expand.is_expanded else info.nbytes for info in infos
    )
    activation_bytes = _activation_bytes(shape, config, wide.block_bytes)
    if measured is not None:
        weight_bytes, activation_bytes = measured.weight_bytes, measured.workspace_bytes
    needs = Needs(weight_bytes, activation_bytes, *_least_cache(config, specs), share)
    stays = share.is_of_host and not expand.is_expanded
    stacks = sum(info.nbytes for info in infos if stays and _is_expert_stack(info))
    file_bytes = _file_bytes(device.experts, stacks, needs, free)
    weight_bytes -= file_bytes
    needs = replace(needs, weight_bytes=weight_bytes)
    if config.cache.num_blocks == "auto":
        _check_fits(config, needs, free)
    left = max(0, free - weight_bytes - activation_bytes)
    caps = Caps(
        backends=_usable(backend),
        dtype=dtype,
        num_cores=num_usable_cores(),
        max_position_embeddings=shape.max_position_embeddings,
        kv_specs=specs,
        bytes_per_position=_bytes_per_position(shape, config, wide.block_bytes),
        kv_budget_bytes=int(left * share.value),
    )
    if measured is not None:
        # Tables of positions are among the weights, and rows of tokens lie on the host.
        caps = replace(caps, max_position_embeddings=measured.max_positions, bytes_per_position=0)
    resolved = resolve(config, caps)
    assert resolved.cache.num_blocks != "auto", "resolve leaves no auto"
    return Plan(
        config=resolved,
        model_config=shape,
        kv_specs=specs,
        is_expanded=expand.is_expanded,
        expand_reason=expand.reason,
        free_bytes=free,
        weight_bytes=weight_bytes,
        file_bytes=file_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=(resolved.cache.num_blocks + 1) * block_bytes(specs, config.cache.block_size),
        state_bytes=_states_of(specs, int(resolved.cache.num_state_slots)),
        weight_formats=_formats(infos),
    )


def _formats(infos: Sequence[TensorInfo]) -> tuple[str, ...]:
    """Return the element types of tensors, most bytes first."""
    sizes: Counter[str] = Counter()
    for info in infos:
        sizes[info.dtype.name] += info.nbytes
    return tuple(name for name, _ in sizes.most_common())


def _kv_dtype(config: EngineConfig, backend: str, dtype: str) -> str:
    """Return the name of the dtype of keys and values; ``dtype`` is that of activations."""
    if config.cache.kv_cache_dtype != "auto":
        return config.cache.kv_cache_dtype
    act = auto_act(backend) if config.device.act == "auto" else config.device.act
    return auto_kv_dtype(backend, dtype, act)


def _with_wanted_head(shape: ModelConfig, config: EngineConfig) -> ModelConfig:
    """Return the config of a model that keeps its draft head only where it drafts tokens.

    Raises ConfigError where tokens are to be drafted by a head that the model has not.
    """
    if config.speculative.speculation != MTP_METHOD:
        return replace(shape, num_mtp_layers=0)
    if not shape.num_mtp_layers:
        raise ConfigError(
            "[config] speculative.speculation: expected a model with a draft head for "
            f"{MTP_METHOD!r}, got {shape.architecture} without one; take a file that has it, or "
            "'ngram'",
            field="speculative.speculation",
        )
    return shape


@dataclass(frozen=True, slots=True)
class _Share:
    """What KV and states may take of what weights and activations leave, and who says so."""

    value: float
    setting: str
    is_of_host: bool


def _share(config: EngineConfig, backend: str) -> _Share:
    cache = config.cache
    if backend in backends.DEVICE_BACKENDS:
        # Nobody else needs what is left of the engine's part of a device.
        text = f"gpu_memory_utilization {cache.gpu_memory_utilization}"
        return _Share(1.0, text, False)
    return _Share(cache.memory_fraction, f"memory_fraction {cache.memory_fraction}", True)


@dataclass(frozen=True, slots=True)
class Needs:
    """What cannot be smaller, in bytes.

    Attributes:
        weight_bytes: weights in memory.
        activation_bytes: of the largest step.
        num_tokens: tokens of the shortest sequence that must have room.
        cache_bytes: KV and states of one request of so many.
        share: of what weights and activations leave, that the cache gets.
    """

    weight_bytes: int
    activation_bytes: int
    num_tokens: int
    cache_bytes: int
    share: _Share

    @property
    def nbytes(self) -> int:
        """The sum."""
        return self.weight_bytes + self.activation_bytes + int(self.cache_bytes / self.share.value)


def _least_cache(config: EngineConfig, specs: Sequence[LayerSpec]) -> tuple[int, int]:
    """Return tokens and bytes of the least cache."""
    num_tokens = 2 if config.max_model_len == "auto" else config.max_model_len
    num_blocks = _blocks_of(config, specs, num_tokens) + 1
    slots = config.cache.num_state_slots
    num_bytes = num_blocks * block_bytes(specs, config.cache.block_size)
    num_bytes += _states_of(specs, MIN_STATE_SLOTS if slots == "auto" else slots)
    return num_tokens, num_bytes


def _is_expert_stack(info: TensorInfo) -> bool:
    """Whether a tensor is all experts of a layer, so that it can be used where it lies.

    Blocks of quantized checkpoints are laid out anew in memory.
    """
    is_stack = _EXPERTS in info.name and len(info.shape) == 3
    return is_stack and info.dtype not in SCALED_BLOCKS


def _file_bytes(place: str, stack_bytes: int, needs: Needs, free: int) -> int:
    """Return the bytes of experts that stay in the file; says so once where memory decides.

    Raises ConfigError where they are wanted there and none can be.
    """
    if place == "file" and not stack_bytes:
        raise ConfigError(
            "[config] device.experts: expected stacks of experts that are read as they are stored "
            "by the host, for 'file', got none; take 'auto', or a GGUF file of the model",
            field="device.experts",
        )
    if place == "memory" or (place == "auto" and needs.nbytes <= free):
        return 0
    if place == "auto" and stack_bytes:
        log.warning(
            "the model takes %d MiB of %d MiB free: %d MiB of experts stay in its file and are "
            "read at the speed of the disk",
            needs.nbytes // _MIB,
            free // _MIB,
            stack_bytes // _MIB,
        )
    return stack_bytes


def _check_fits(config: EngineConfig, needs: Needs, free: int) -> None:
    """Check that weights, activations and the KV of one request fit together."""
    if needs.nbytes > free:
        setting = needs.share.setting
        raise ConfigError(
            f"[memory] model: expected {needs.nbytes / _MIB:.1f} MiB (weights "
            f"{needs.weight_bytes / _MIB:.1f}, activations {needs.activation_bytes / _MIB:.1f}, "
            f"KV of {needs.num_tokens} tokens {needs.cache_bytes / _MIB:.1f} at {setting}), got "
            f"{free / _MIB:.1f} MiB free: {(needs.nbytes - free) / _MIB:.1f} MiB too little; lower "
            f"max_model_len or max_num_batched_tokens, raise {setting.split()[0]} or free memory, "
            "or take a smaller kv_cache_dtype or a smaller model",
            field="model",
        )


def _states_of(specs: Sequence[LayerSpec], num_slots: int) -> int:
    """Return the bytes of so many states and the null one, 0 in a model without any."""
    return (num_slots + 1) * state_bytes(specs)


def _blocks_of(config: EngineConfig, specs: Sequence[LayerSpec], num_tokens: int) -> int:
    return blocks_of_request(
        cache_groups(specs),
        num_tokens,
        config.cache.block_size,
        config.scheduler.max_prefill_chunk,
    )


def _bytes_per_position(shape: ModelConfig, config: EngineConfig, item_bytes: int) -> int:
    """Return the bytes of a row of the rotary table and of a token in the row of each request."""
    return shape.rope.rotary_dim * item_bytes + config.scheduler.max_num_seqs * 8


def _activation_bytes(shape: ModelConfig, config: EngineConfig, item_bytes: int) -> int:
    """Return an estimate of the arrays of the largest step, with temporaries."""
    heads = (shape.num_heads * 2 + shape.num_kv_heads * 2) * shape.head_dim
    linear = shape.linear_attention
    if linear is not None:
        heads = max(heads, 2 * linear.num_channels + 2 * linear.value_size)
    per_token = 4 * shape.hidden_size + heads + 3 * shape.intermediate_size
    per_row = 4 * shape.vocab_size
    num_tokens = config.scheduler.max_num_batched_tokens
    return _FIXED_BYTES + item_bytes * 2 * (
        num_tokens * per_token
        + config.scheduler.max_num_seqs * per_row
        + _expert_elements(shape, num_tokens)
    )


def _expert_elements(shape: ModelConfig, num_tokens: int) -> int:
    """Return the elements that the op of a layer's experts keeps for pairs of token and expert."""
    if shape.moe is None:
        return 0
    pairs = min(num_tokens * shape.moe.num_experts_per_tok, _MAX_PAIRS)
    return pairs * (shape.hidden_size + shape.moe.moe_intermediate_size)
