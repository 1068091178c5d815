"""``quantization_config`` of config.json: what is read of it, and what is refused."""

from collections.abc import Callable, Mapping
from typing import Any

from pyvt.errors import ConfigError, UnsupportedError, did_you_mean
from pyvt.weights.quantized.format import Scheme

Config = Mapping[str, Any]


def _refuse(name: str, expected: str, got: Any) -> UnsupportedError:
    return UnsupportedError(
        f"[config.json] quantization_config.{name}: expected {expected}, got {got!r}"
    )


def _fp8(config: Config) -> Scheme:
    block = config.get("weight_block_size") or (128, 128)
    if len(block) != 2 or any(type(size) is not int or size < 1 for size in block):
        raise _refuse("weight_block_size", "two positive integers", block)
    return Scheme(method="fp8", block=(block[0], block[1]))


def _gptq(config: Config) -> Scheme:
    if config.get("bits", 4) != 4:
        raise _refuse("bits", "4 for gptq", config["bits"])
    return Scheme(method="gptq", zero_offset=int(config.get("checkpoint_format") != "gptq_v2"))


def _awq(config: Config) -> Scheme:
    for key, expected in (("bits", 4), ("version", "gemm")):
        value = config.get(key, expected)
        if str(value).lower() != str(expected):
            raise _refuse(key, f"{expected!r} for awq", value)
    return Scheme(method="awq")


def _compressed(config: Config) -> Scheme:
    formats = ("pack-quantized", "float-quantized", "nvfp4-pack-quantized", "mixed-precision")
    name = config.get("format", formats[0])
    if name not in formats:
        raise _refuse("format", f"one of {', '.join(formats)}", name)
    return Scheme(method="compressed-tensors", block=_compressed_block(config))


def _compressed_block(config: Config) -> tuple[int, int]:
    groups = config.get("config_groups") or {}
    for group in groups.values():
        block = ((group or {}).get("weights") or {}).get("block_structure")
        if isinstance(block, list) and len(block) == 2:
            return int(block[0]), int(block[1])
    return 128, 128


def _modelopt(config: Config) -> Scheme:
    return Scheme(method="modelopt")


QUANT_METHODS: Mapping[str, Callable[[Config], Scheme]] = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}


def scheme_of(config: Config, hf_quant_config: Config | None = None) -> Scheme | None:
    """Return the scheme of a checkpoint, None for one that is not quantized.

    Args:
        config: config.json.
        hf_quant_config: hf_quant_config.json, which ModelOpt writes; None where there is none.

    Raises ConfigError where it is no object, UnsupportedError that lists the known methods.
    """
    text = config.get("text_config")
    found = config.get("quantization_config")
    if found is None and isinstance(text, Mapping):
        found = text.get("quantization_config")
    if found is None and hf_quant_config is not None:
        found = {"quant_method": "modelopt"}
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"[config.json] quantization_config: expected an object, got {found!r}",
            field="quantization_config",
        )
    method = str(found.get("quant_method"))
    if method not in QUANT_METHODS:
        raise UnsupportedError(
            f"[config.json] quantization_config: quant_method {method!r} is not supported; "
            f"{did_you_mean(method, QUANT_METHODS)}; or take a GGUF file of the model"
        )
    return QUANT_METHODS[method](found)
