"""The composition root: from a path to an engine, and the memory plan that precedes loading.

The only place that knows files, tokenizers, models, workers and the engine at once.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from pyvt import backends
from pyvt.config import CacheGroup, EngineConfig, LayerSpec, StateSpec
from pyvt.config.cache import Auto, cache_groups
from pyvt.config.device import DeviceConfig
from pyvt.config.model import ModelConfig, SamplingDefaults
from pyvt.dispatch import computing_on, use_backend
from pyvt.dispatch.backend import Backend, backend_named, selected_backend
from pyvt.engine.core import EngineCore
from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.memory_plan import Measured, Plan, best_backend, device_of, plan
from pyvt.engine.output_processor import OutputProcessor
from pyvt.errors import CheckpointError, ConfigError, RequestError
from pyvt.kv_tier.connector import KVConnector
from pyvt.log import get_logger
from pyvt.models.base import CausalLM
from pyvt.models.registry import load_model
from pyvt.packed_texts import PackedTexts
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.block_hash import BlockHasher, Namespace
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.tensor.blas import set_blas_threads
from pyvt.tensor.dtype import dtype_named
from pyvt.tensor.memory import available_host_bytes, trim_heap
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tokenizer import Tokenizer, gguf_tokenizer, hf_tokenizer
from pyvt.weights.loader import Progress
from pyvt.weights.quantized import QuantizedSource
from pyvt.weights.resolve import ModelFiles, chat_template_file, open_model
from pyvt.weights.source import Tensor
from pyvt.worker.kv_cache import KVCache, allocate_kv_cache
from pyvt.worker.model_runner import ModelRunner
from pyvt.worker.profile_run import workspace_bytes

if TYPE_CHECKING:
    from pyvt.structured import GrammarCompiler
    from pyvt.tokenizer import ChatTemplate

log = get_logger(__name__)

MakeConnector = Callable[[int, tuple[CacheGroup, ...]], KVConnector]

# Of packed weights, taken from the system while headers are read.
_RESERVED_BYTES = 128 << 20
# Of each tensor, in the digest that tells checkpoints apart.
_DIGESTED_BYTES = 1024


def build_engine(
    config: EngineConfig,
    *,
    progress: Progress | None = None,
    make_connector: MakeConnector | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> LLMEngine:
    """Load a model and return an engine for it.

    Args:
        config: the settings; ``auto`` is resolved here.
        progress: called with the bytes of weights that are loaded and their sum.
        make_connector: makes what loads and stores KV beyond the engine's blocks, of their size
            and the cache groups; it needs the prefix cache, whose names of blocks it uses.
        on_plan: called with what the model will take of the memory, before any of it is loaded.

    Raises:
        CheckpointError: the model's files are damaged or incomplete.
        ConfigError: a setting cannot be met, or memory is too small.
        UnsupportedError: the architecture, a format or the tokenizer is not supported.
    """
    start_s = time.perf_counter()
    _check_named(config, make_connector)
    templates = None
    if config.chat_template is not None:
        templates = chat_template_file(Path(config.chat_template))
    files, loaded = _load_files(config, progress, on_plan)
    model, planned, namespace, tokenizer = loaded
    config = planned.config
    trim_heap()
    limits = _limits(planned.model_config, tokenizer, config)
    unused_ids = _unused_ids(planned.model_config, tokenizer, limits)
    size = config.cache.block_size
    with computing_on(config.device.backend):
        cache = _allocate(planned)
        connector = make_connector(size, cache.groups) if make_connector is not None else None
        runner = ModelRunner(model, cache, config, connector=connector, unused_ids=unused_ids)
    scheduler = make_scheduler(config, cache.groups, namespace, connector)
    core = EngineCore(scheduler, runner)
    engine = LLMEngine(
        core,
        InputProcessor(
            tokenizer,
            _chat_template(files.chat_templates if templates is None else templates, tokenizer),
            limits,
            lambda: _grammar_compiler(tokenizer, planned.model_config.vocab_size, limits),
        ),
        OutputProcessor(tokenizer, core.clock),
        config=config,
        default_params=default_params(planned.model_config.sampling_defaults),
        model_load_ms=(time.perf_counter() - start_s) * 1000,
    )
    engine.plan = planned
    device = config.device
    told = (files.path, device.backend, device.dtype, engine.model_load_ms)
    log.info("engine ready model=%s backend=%s dtype=%s load_ms=%.0f", *told)
    return engine


def _path_of(model: str) -> Path:
    """Return the path of a model; the hub is loaded only for a name that is none."""
    path = Path(model)
    try:
        if path.exists():
            return path
    except OSError:  # a name longer than the file system takes
        pass
    from pyvt import hub

    return hub.obtain(model)


def _load_files(
    config: EngineConfig, progress: Progress | None, on_plan: Callable[[Plan], None] | None
) -> tuple[ModelFiles, tuple[CausalLM, Plan, Namespace, Tokenizer]]:
    """Return a model's files, closed, and what they gave."""
    num_threads = config.device.threads
    path = _path_of(config.model)
    packs = _packing_backend(config.device)
    with ExitStack() as stack:
        if packs.prepack is not None:
            stack.callback(packs.prepack.release_rest)
        # A tokenizer takes as long as the weights, most of it with one core, and headers leave one
        # without work.
        helper = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="loading"))
        # Told before any of it is taken.
        free = None if packs.reserve is None else available_host_bytes()
        room = helper.submit(_reserve, packs, path, free)
        files = open_model(path)
        stack.callback(files.close)
        made = helper.submit(_tokenizer, files)
        planned = plan(config, files, free_bytes=free)
        log.info("plan %s", planned.summary())
        if on_plan is not None:
            on_plan(planned)
        backends.load(planned.config.device.backend)
        use_backend(planned.config.device.backend)
        # Another thread may build an engine on another one meanwhile.
        stack.enter_context(computing_on(planned.config.device.backend))
        _set_threads(num_threads)
        room.result()
        model, planned = _load(config, planned, files, progress)
        namespace = namespace_of(files, planned)
        tokenizer = made.result()
        # The tokenizer and the namespace have read of the file what the loader had let go of.
        files.source.release()
    return files, (model, planned, namespace, tokenizer)


def _packing_backend(device: DeviceConfig) -> Backend:
    """Return the record of the host backend that will lay weights out, an empty one for none."""
    name = best_backend() if device.backend == "auto" else device.backend
    if device.dtype == "f64" or name not in backends.available():
        return Backend(name=name)
    backends.load(name)
    return backend_named(name)


def _reserve(packs: Backend, path: Path, free_bytes: int | None) -> None:
    """Take memory for the first packed weights of the files at a path, where there is plenty."""
    if packs.reserve is None or free_bytes is None:
        return
    try:
        paths = [path] if path.is_file() else path.glob("*.safetensors")
        file_bytes = sum(each.stat().st_size for each in paths)
    except OSError:  # a file that cannot be read is the loader's to tell of, if it needs it
        return
    if file_bytes < free_bytes // 2:
        packs.reserve(file_bytes, min(file_bytes, _RESERVED_BYTES))


def _check_named(config: EngineConfig, make_connector: MakeConnector | None) -> None:
    """Check that blocks have the names by which a connector knows them."""
    if make_connector is not None and not config.cache.enable_prefix_caching:
        raise ConfigError(
            "[config] cache.enable_prefix_caching: expected true with a KV connector, got false",
            field="cache.enable_prefix_caching",
        )


def _grammar_compiler(
    tokenizer: Tokenizer, vocab_size: int, limits: InputLimits
) -> "GrammarCompiler":
    """Return a compiler of grammars; its library is loaded only where somebody asks for one."""
    from pyvt.structured import GrammarCompiler

    return GrammarCompiler(tokenizer, vocab_size, limits.eos_token_ids)


def _load(
    given: EngineConfig, planned: Plan, files: ModelFiles, progress: Progress | None
) -> tuple[CausalLM, Plan]:
    """Load a model as planned; on a device return the plan anew, from what the model takes there.

    ``given`` is the config with its auto.
    """
    config = planned.config
    device = device_of(config.device.backend)
    before = 0 if device is None else device.memory()[0]
    model = load_model(
        files,
        planned.model_config,
        dtype=dtype_named(config.device.dtype),
        expand="always" if planned.is_expanded else "never",
        act=config.device.act,
        backend=config.device.backend,
        has_experts_in_file=planned.file_bytes > 0,
        max_positions=int(config.max_model_len),
        progress=progress,
    ).model
    if device is None or given.cache.num_blocks != "auto":
        return model, planned
    measured = Measured(
        free_bytes=planned.free_bytes,
        weight_bytes=before - device.memory()[0],
        workspace_bytes=workspace_bytes(model, device, planned.kv_specs, config),
        max_positions=int(config.max_model_len),
    )
    planned = plan(given, files, measured=measured)
    log.info("plan, measured %s", planned.summary())
    return model, planned


def _allocate(planned: Plan) -> KVCache:
    cache = planned.config.cache
    num_slots = int(cache.num_state_slots)
    return allocate_kv_cache(planned.kv_specs, int(cache.num_blocks), cache.block_size, num_slots)


def make_scheduler(
    config: EngineConfig,
    groups: tuple[CacheGroup, ...],
    namespace: Namespace,
    connector: KVConnector | None = None,
) -> Scheduler:
    """Return the scheduler of a resolved config."""
    assert config.cache.num_blocks != "auto", "the config is resolved"
    manager = KVCacheManager(
        config.cache.num_blocks,
        config.cache.block_size,
        groups=groups,
        num_state_slots=int(config.cache.num_state_slots),
        max_step_tokens=config.scheduler.max_prefill_chunk,
    )
    has_cache = config.cache.enable_prefix_caching
    hasher = BlockHasher(config.cache.block_size, namespace) if has_cache else None
    return Scheduler(
        config.scheduler,
        manager,
        hasher=hasher,
        watermark=config.cache.watermark,
        connector=connector,
        num_lookahead_tokens=config.speculative.num_lookahead_tokens,
    )


def namespace_of(files: ModelFiles, planned: Plan) -> Namespace:
    """Return what must be equal for two engines to mean the same KV by the same tokens.

    ``weights`` digests name, type, shape and first bytes of every tensor: enough to tell
    checkpoints apart, and cheap.
    """
    config = planned.config
    weights = blake3()
    source = files.source
    # What is laid out anew at load is looked at as it is stored.
    source = source.stored if isinstance(source, QuantizedSource) else source
    for name in sorted(source.names()):
        info = source.info(name)
        weights.update(f"{name} {info.dtype} {info.shape}\n".encode())
        weights.update(_first_bytes(source.get(name)))
    groups = cache_groups(planned.kv_specs)
    layout = [
        (g.kind, g.layers, g.window, _shape_of(planned.kv_specs[g.layers[0]])) for g in groups
    ]
    return Namespace(
        model=files.path.name,
        weights=weights.hexdigest(),
        tokenizer=_tokenizer_digest(files),
        rope=blake3(repr(planned.model_config.rope).encode()).hexdigest(),
        compute=f"{config.device.backend} {config.device.dtype} {config.device.act} "
        f"expand={planned.is_expanded}",
        dtype=planned.kv_dtype,
        layout=f"{config.cache.block_size} {layout}",
    )


def _shape_of(spec: LayerSpec) -> tuple[object, ...]:
    if isinstance(spec, StateSpec):
        return spec.conv_shape, spec.state_shape, spec.state_dtype.name
    return spec.layer_shape[:2]


def _tokenizer_digest(files: ModelFiles) -> str:
    if files.tokenizer_json is not None:
        return blake3(files.tokenizer_json.encode()).hexdigest()
    digest = blake3()
    for key, value in (files.gguf_metadata or {}).items():
        if not key.startswith("tokenizer."):
            continue
        if isinstance(value, PackedTexts):
            digest.update(f"{key}\0{len(value)}\0".encode() + value.ends.tobytes() + value.blob)
        elif isinstance(value, list):
            numbers = np.asarray(value)
            digest.update(f"{key}\0{numbers.dtype}\0".encode() + numbers.tobytes())
        else:
            digest.update(f"{key}\0{value!r}".encode())
    return digest.hexdigest()


def _first_bytes(tensor: Tensor) -> bytes:
    rows = tensor.blocks if isinstance(tensor, QuantTensor) else tensor
    return rows[:1].tobytes()[:_DIGESTED_BYTES]


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


def _chat_template(
    sources: Mapping[str, str], tokenizer: Tokenizer
) -> Callable[[], "ChatTemplate"] | None:
    """Return what makes the model's templates; what renders them is loaded only for chats."""

    def make() -> "ChatTemplate":
        from pyvt.tokenizer import ChatTemplate

        return ChatTemplate.for_tokenizer(sources, tokenizer)

    return make if sources else None


def _unused_ids(shape: ModelConfig, tokenizer: Tokenizer, limits: InputLimits) -> frozenset[int]:
    """Return the ids of logits that stand for no token: padding of the vocabulary, and holes."""
    padding = range(limits.vocab_size, shape.vocab_size)
    unused = {*tokenizer.unused_ids, *padding} - limits.eos_token_ids
    return frozenset(token_id for token_id in unused if token_id < shape.vocab_size)


def _limits(shape: ModelConfig, tokenizer: Tokenizer, config: EngineConfig) -> InputLimits:
    vocab_size = min(shape.vocab_size, tokenizer.vocab_size)
    ids = {*shape.eos_token_ids, *tokenizer.eos_token_ids}
    return InputLimits(
        vocab_size=vocab_size,
        max_model_len=int(config.max_model_len),
        eos_token_ids=frozenset(token_id for token_id in ids if token_id < vocab_size),
        num_logits=shape.vocab_size,
    )
