"""EngineConfig: ranges, flat settings, and the end of every auto."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from pyvt.config import (
    CacheConfig,
    Caps,
    DeviceConfig,
    EngineConfig,
    KVCacheSpec,
    SchedulerConfig,
    engine_config,
    resolve,
)
from pyvt.errors import ConfigError
from pyvt.tensor.dtype import BF16, F32

SPEC = KVCacheSpec(num_kv_heads=1, head_dim=125, dtype=F32)  # 1,000 bytes a token
CAPS = Caps(
    backends=("cpu", "numpy"),
    dtype="f32",
    num_cores=6,
    max_position_embeddings=1024,
    kv_specs=(SPEC,),
    kv_budget_bytes=16_000_000,
)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CacheConfig(block_size=3), "cache.block_size"),
        (lambda: CacheConfig(num_blocks=0), "cache.num_blocks"),
        (lambda: CacheConfig(num_blocks=True), "cache.num_blocks"),
        (lambda: CacheConfig(num_blocks="all"), "cache.num_blocks"),
        (lambda: CacheConfig(memory_fraction=0), "cache.memory_fraction"),
        (lambda: CacheConfig(memory_fraction=1.5), "cache.memory_fraction"),
        (lambda: CacheConfig(memory_fraction="0.5"), "cache.memory_fraction"),
        (lambda: CacheConfig(memory_fraction=None), "cache.memory_fraction"),
        (lambda: CacheConfig(block_size=True), "cache.block_size"),
        (lambda: DeviceConfig(backend=5), "device.backend"),
        (lambda: EngineConfig(model="x", cache=5), "cache"),
        (lambda: engine_config("x", cache=None, block_size=16), "cache"),
        (lambda: SchedulerConfig(max_num_seqs=0), "scheduler.max_num_seqs"),
        (lambda: SchedulerConfig(max_prefill_chunk=1.5), "scheduler.max_prefill_chunk"),
        (lambda: SchedulerConfig(max_num_batched_tokens=8), "scheduler.max_num_seqs"),
        (lambda: DeviceConfig(dtype="f8"), "device.dtype"),
        (lambda: DeviceConfig(expand="maybe"), "device.expand"),
        (lambda: DeviceConfig(act="q4"), "device.act"),
        (lambda: DeviceConfig(threads=0), "device.threads"),
        (lambda: DeviceConfig(threads=257), "device.threads"),
        (lambda: DeviceConfig(threads="many"), "device.threads"),
        (lambda: EngineConfig(model=""), "model"),
        (lambda: EngineConfig(model="m", max_model_len=1), "max_model_len"),
        (lambda: EngineConfig(model="m", max_model_len="long"), "max_model_len"),
    ],
)
def test_config_bad_value_is_refused_by_field(make: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[config\] {field}: expected") as refused:
        make()

    assert refused.value.field == field


@pytest.mark.parametrize("part", [CacheConfig, SchedulerConfig, DeviceConfig])
def test_config_every_setting_has_help(part: Any) -> None:
    assert all(f.metadata["help"] for f in fields(part))


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CacheConfig().block_size = 8  # type: ignore[misc]


def test_engine_config_puts_flat_settings_into_their_parts() -> None:
    config = engine_config("m", block_size=32, max_num_seqs=2, dtype="f64", max_model_len=64)

    assert (config.cache.block_size, config.scheduler.max_num_seqs) == (32, 2)
    assert (config.device.dtype, config.max_model_len) == ("f64", 64)


@pytest.mark.parametrize(
    ("dtype", "short"), [("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")]
)
def test_config_dtype_may_have_its_long_name(dtype: str, short: str) -> None:
    assert engine_config("m", dtype=dtype).device.dtype == short


@pytest.mark.parametrize(
    ("dtype", "short"), [("float16", "f16"), ("bfloat16", "bf16"), ("fp8", "fp8_e4m3")]
)
def test_config_kv_cache_dtype_may_have_vllms_name(dtype: str, short: str) -> None:
    assert engine_config("m", kv_cache_dtype=dtype).cache.kv_cache_dtype == short


def test_engine_config_setting_is_laid_over_a_part() -> None:
    config = engine_config("m", cache=CacheConfig(block_size=8, num_blocks=5), block_size=32)

    assert (config.cache.block_size, config.cache.num_blocks) == (32, 5)


def test_engine_config_unknown_setting_has_a_near_miss() -> None:
    with pytest.raises(ConfigError, match="'blocksize' is unknown; did you mean 'block_size'"):
        engine_config("m", blocksize=3)


def test_settings_of_the_parts_have_different_names() -> None:
    names = [f.name for part in (CacheConfig, SchedulerConfig, DeviceConfig) for f in fields(part)]

    assert len(set(names)) == len(names)


def test_resolve_leaves_no_auto() -> None:
    config = resolve(EngineConfig(model="m"), CAPS)

    assert config.device == DeviceConfig(backend="cpu", dtype="f32", threads=6, act="q8")
    assert (config.max_model_len, config.cache.num_blocks) == (1024, 999)


@pytest.mark.parametrize(("backend", "act"), [("numpy", "none"), ("cpu", "q8")])
def test_resolve_auto_activations_are_int8_on_native_backends(backend: str, act: str) -> None:
    assert resolve(engine_config("m", backend=backend), CAPS).device.act == act


def test_resolve_keeps_what_was_told() -> None:
    told = engine_config(
        "m",
        backend="numpy",
        dtype="f64",
        threads=2,
        act="q8",
        max_model_len=100,
        num_blocks=7,
        num_state_slots=0,
    )

    assert resolve(told, CAPS) == told


def test_resolve_auto_takes_no_more_blocks_than_all_rows_can_fill() -> None:
    config = resolve(engine_config("m", max_num_seqs=2, max_model_len=100), CAPS)

    assert config.cache.num_blocks == 2 * 7


def test_resolve_auto_context_shrinks_to_the_blocks() -> None:
    config = resolve(engine_config("m", num_blocks=4), CAPS)

    assert config.max_model_len == 64


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_model_len": 1025}, "at most 1024, the model's context, got 1025"),
        ({"max_model_len": 100, "num_blocks": 6}, "100 tokens need 7 KV blocks, the pool has 6"),
        ({"backend": "cud"}, "'cud' is not usable here; did you mean 'cpu'"),
    ],
)
def test_resolve_impossible_setting_is_refused_with_both_numbers(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve(engine_config("m", **settings), CAPS)


def test_resolve_no_memory_says_how_much_is_lacking() -> None:
    caps = Caps(
        backends=("numpy",),
        dtype="f32",
        num_cores=1,
        max_position_embeddings=1024,
        kv_specs=(KVCacheSpec(num_kv_heads=64, head_dim=128, dtype=F32),),
        kv_budget_bytes=0,
    )

    with pytest.raises(ConfigError, match=r"1\.0 MiB too little; lower max_model_len, raise"):
        resolve(EngineConfig(model="m"), caps)


@pytest.mark.parametrize(("dtype", "num_bytes"), [(F32, 2 * 3 * 64 * 4), (BF16, 2 * 3 * 64 * 2)])
def test_kv_cache_spec_bytes_per_token(dtype: Any, num_bytes: int) -> None:
    assert KVCacheSpec(num_kv_heads=3, head_dim=64, dtype=dtype).bytes_per_token == num_bytes
