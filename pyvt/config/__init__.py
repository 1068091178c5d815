"""Frozen settings by composition: ``EngineConfig`` holds the parts, ``resolve`` ends every auto."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pyvt import other_names
from pyvt.config.cache import (
    Auto,
    CacheConfig,
    CacheGroup,
    KVCacheSpec,
    LayerSpec,
    StateSpec,
    block_bytes,
    blocks_of_request,
    cache_groups,
    state_bytes,
)
from pyvt.config.device import DeviceConfig, auto_act
from pyvt.config.scheduler import SchedulerConfig
from pyvt.config.speculative import SpeculativeConfig
from pyvt.errors import ConfigError, did_you_mean
from pyvt.log import get_logger

__all__ = [
    "CacheConfig",
    "CacheGroup",
    "Caps",
    "DeviceConfig",
    "EngineConfig",
    "KVCacheSpec",
    "LayerSpec",
    "SchedulerConfig",
    "SpeculativeConfig",
    "StateSpec",
    "engine_config",
    "resolve",
]

log = get_logger(__name__)

# A request that runs writes one state and may read another; its snapshots take the rest.
SLOTS_OF_REQUEST = 4
MIN_STATE_SLOTS = 2
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of an engine."""

    model: str = field(metadata={"help": "folder of a model or .gguf file"})
    max_model_len: int | Auto = field(
        default="auto",
        metadata={"help": "most tokens of a request, prompt and answer; auto: the model's own"},
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "file of a Jinja template that messages become a prompt by  [default: the "
            "model's own]"
        },
    )
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = field(
        default="raw_logprobs",
        metadata={
            "help": "log probabilities under the model's own logits, or under those that are "
            "sampled from, after penalties, masks, temperature and cuts",
            "choices": LOGPROBS_MODES,
        },
    )
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(
                f"[config] model: expected a name or a path as text, got {self.model!r}",
                field="model",
            )
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            raise ConfigError(
                f"[config] chat_template: expected a path as text, got {self.chat_template!r}",
                field="chat_template",
            )
        for name, kind in _PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise _bad_part(name, getattr(self, name))
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigError(
                f"[config] logprobs_mode: expected one of {', '.join(LOGPROBS_MODES)}, "
                f"got {self.logprobs_mode!r}",
                field="logprobs_mode",
            )
        is_count = isinstance(self.max_model_len, int) and not isinstance(self.max_model_len, bool)
        if self.max_model_len != "auto" and (not is_count or self.max_model_len < 2):
            raise ConfigError(
                "[config] max_model_len: expected 'auto' or an integer of at least 2, "
                f"got {self.max_model_len!r}",
                field="max_model_len",
            )


_PARTS: dict[str, type[Any]] = {
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
    "speculative": SpeculativeConfig,
}


def _bad_part(name: str, got: Any) -> ConfigError:
    return ConfigError(
        f"[config] {name}: expected {_PARTS[name].__name__}, got {got!r}", field=name
    )


def engine_config(model: str, **settings: Any) -> EngineConfig:
    """Return the config of flat settings: ``engine_config(path, block_size=32, dtype="f64")``.

    A name is looked up in ``EngineConfig`` and in its parts; no two parts share a name.

    Raises:
        ConfigError: a name is unknown, or a value is refused by its part.
    """
    owners = {f.name: part for part, cls in _PARTS.items() for f in fields(cls)}
    own = {f.name for f in fields(EngineConfig)}
    chosen: dict[str, Any] = {}
    by_part: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in own:
            chosen[name] = value
        elif name in owners:
            by_part.setdefault(owners[name], {})[name] = value
        else:
            known = other_names.SETTINGS.get(name) or did_you_mean(name, own | owners.keys())
            raise ConfigError(f"[config] setting: {name!r} is unknown; {known}", field=name)
    for part, values in by_part.items():
        if not isinstance(chosen.get(part, _PARTS[part]()), _PARTS[part]):
            raise _bad_part(part, chosen[part])
        chosen[part] = replace(chosen[part] if part in chosen else _PARTS[part](), **values)
    return EngineConfig(model=model, **chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What ``resolve`` must know about the machine and the model.

    Attributes:
        backends: usable host backends, best first.
        dtype: the dtype that those backends compute in unless told.
        num_cores: cores that this process may use.
        max_position_embeddings: context of the model.
        kv_specs: what each layer keeps of a token, or of a request.
        bytes_per_position: bytes of tables with a row for each position of a request.
        kv_budget_bytes: memory that KV blocks and states may take.
    """

    backends: tuple[str, ...]
    dtype: str
    num_cores: int
    max_position_embeddings: int
    kv_specs: tuple[LayerSpec, ...]
    bytes_per_position: int = 0
    kv_budget_bytes: int


def resolve(config: EngineConfig, caps: Caps) -> EngineConfig:
    """Return a config without auto; each decision is logged once.

    Raises:
        ConfigError: an explicit setting cannot be met; the text has both numbers and remedies.
    """
    device = _resolve_device(config.device, caps)
    num_slots = _resolve_slots(config, caps)
    max_model_len, num_blocks = _resolve_lengths(config, caps, num_slots)
    cache = replace(config.cache, num_blocks=num_blocks, num_state_slots=num_slots)
    resolved = replace(config, max_model_len=max_model_len, cache=cache, device=device)
    for name, before, after in (
        ("backend", config.device.backend, device.backend),
        ("dtype", config.device.dtype, device.dtype),
        ("threads", config.device.threads, device.threads),
        ("act", config.device.act, device.act),
        ("max_model_len", config.max_model_len, max_model_len),
        ("num_blocks", config.cache.num_blocks, num_blocks),
        ("num_state_slots", config.cache.num_state_slots if num_slots else num_slots, num_slots),
    ):
        if before == "auto":
            log.info("resolved %s=%s", name, after)
    return resolved


def _resolve_device(device: DeviceConfig, caps: Caps) -> DeviceConfig:
    backend = caps.backends[0] if device.backend == "auto" else device.backend
    if backend not in caps.backends:
        known = did_you_mean(backend, caps.backends)
        raise ConfigError(
            f"[config] device.backend: {backend!r} is not usable here; {known}",
            field="device.backend",
        )
    return replace(
        device,
        backend=backend,
        dtype=caps.dtype if device.dtype == "auto" else device.dtype,
        act=auto_act(backend) if device.act == "auto" else device.act,
        threads=caps.num_cores if device.threads == "auto" else device.threads,
    )


def _resolve_slots(config: EngineConfig, caps: Caps) -> int:
    """Return the states that are kept at once: for all requests and some snapshots each.

    They may take half of the memory for KV and states, or what one request of a length that was
    asked for leaves, if that is less.
    """
    size, asked = state_bytes(caps.kv_specs), config.cache.num_state_slots
    if not size:
        if asked not in ("auto", 0):
            raise ConfigError(
                "[config] cache.num_state_slots: expected 'auto' for a model without linear "
                f"attention, got {asked!r}",
                field="cache.num_state_slots",
            )
        return 0
    if asked != "auto":
        return asked
    room = caps.kv_budget_bytes // 2
    if config.max_model_len != "auto" and config.cache.num_blocks == "auto":
        need = _blocks_for(config, caps, config.max_model_len) + 1
        room = min(room, caps.kv_budget_bytes - need * _room_bytes(config, caps))
    wanted = config.scheduler.max_num_seqs * SLOTS_OF_REQUEST
    return max(MIN_STATE_SLOTS, min(wanted, room // size - 1))


def _resolve_lengths(config: EngineConfig, caps: Caps, num_slots: int) -> tuple[int, int]:
    """Return (max_model_len, num_blocks): one request of full length always fits the pool."""
    block_size = config.cache.block_size
    bytes_of_block = block_bytes(caps.kv_specs, block_size)
    max_model_len = config.max_model_len
    if max_model_len == "auto":
        wanted = caps.max_position_embeddings
    elif max_model_len > caps.max_position_embeddings:
        raise ConfigError(
            f"[config] max_model_len: expected at most {caps.max_position_embeddings}, the "
            f"model's context, got {max_model_len}",
            field="max_model_len",
        )
    else:
        wanted = max_model_len
    if config.cache.num_blocks == "auto":
        full_load = config.scheduler.max_num_seqs * _blocks_for(config, caps, wanted)
        # One block stands for none.
        room = caps.kv_budget_bytes - (num_slots + 1) * state_bytes(caps.kv_specs)
        num_blocks = min(full_load, room // _room_bytes(config, caps) - 1)
        num_blocks = max(0, num_blocks)
    else:
        num_blocks = config.cache.num_blocks
    if max_model_len == "auto":
        wanted = _longest(config, caps, num_blocks, wanted)
    least = max(2, wanted)
    need = _blocks_for(config, caps, least)
    if need > num_blocks:
        lacking_mib = (need - num_blocks) * bytes_of_block / 2**20
        raise ConfigError(
            f"[config] max_model_len: {least} tokens need {need} KV blocks, the pool has "
            f"{num_blocks}: {lacking_mib:.1f} MiB too little; lower max_model_len, raise "
            "memory_fraction or num_blocks, or take a smaller kv_cache_dtype or a smaller model",
            field="max_model_len",
        )
    return wanted, num_blocks


def _room_bytes(config: EngineConfig, caps: Caps) -> int:
    """Return the bytes of a block and of its share of the tables of a request that fills a pool."""
    size = config.cache.block_size
    return block_bytes(caps.kv_specs, size) + size * caps.bytes_per_position


def _blocks_for(config: EngineConfig, caps: Caps, num_tokens: int) -> int:
    return blocks_of_request(
        cache_groups(caps.kv_specs),
        num_tokens,
        config.cache.block_size,
        config.scheduler.max_prefill_chunk,
    )


def _longest(config: EngineConfig, caps: Caps, num_blocks: int, most: int) -> int:
    """Return the most tokens, up to ``most``, of a request that ``num_blocks`` hold."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _blocks_for(config, caps, middle) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low
