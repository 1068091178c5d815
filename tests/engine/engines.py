"""Engines over a fake runner and the byte tokenizer."""

from collections.abc import Sequence
from typing import Any

from pyvt.config import EngineConfig, SchedulerConfig
from pyvt.engine.core import EngineCore
from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.output_processor import OutputProcessor
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.structured import GrammarCompiler
from pyvt.testing.fakes import FakeClock, FakeModelRunner, FakeTokenizer

EOS = FakeTokenizer.EOS


def engine_of(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 100,
    chat_template: Any = None,
    clock: Any = None,
    max_num_seqs: int = 64,
    **runner: Any,
) -> LLMEngine:
    """Return an engine; ``runner`` holds settings of the fake runner."""
    clock = clock or FakeClock()
    tokenizer = FakeTokenizer()
    manager = KVCacheManager(num_blocks, block_size)
    config = SchedulerConfig(max_num_seqs=max_num_seqs)
    scheduler = Scheduler(config, manager, hasher=BlockHasher(block_size))
    settings = {"vocab_size": tokenizer.vocab_size, **runner}
    fake = FakeModelRunner(num_blocks, block_size, **settings)
    limits = InputLimits(
        vocab_size=tokenizer.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
    )
    return LLMEngine(
        EngineCore(scheduler, fake, clock=clock),
        InputProcessor(
            tokenizer,
            (lambda: chat_template) if chat_template else None,
            limits,
            lambda: GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids),
        ),
        OutputProcessor(tokenizer, clock),
        config=EngineConfig(model="fake"),
    )


def run(
    engine: LLMEngine, request_id: str, prompt: Any, *, is_stream: bool = False, **params: Any
) -> list[RequestOutput]:
    """Run one request to its end; return all of its outputs."""
    engine.add_request(request_id, prompt, SamplingParams(**params), is_stream=is_stream)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        outputs.extend(engine.step())
        engine.core.scheduler.check_integrity()
    assert is_idle(engine)
    return [output for output in outputs if output.request_id == request_id]


def forced(ids_or_text: str | Sequence[int], *, is_ended: bool = True) -> dict[str, list[int]]:
    """Return the tokens that request ``a`` is made to generate, with EOS unless told."""
    is_text = isinstance(ids_or_text, str)
    ids = list(ids_or_text.encode()) if is_text else list(ids_or_text)  # type: ignore[union-attr]
    return {"a": [*ids, EOS] if is_ended else ids}


def is_idle(engine: LLMEngine) -> bool:
    """Whether no request is left and every block is free."""
    pool = engine.core.scheduler.kv_cache_manager.pool
    return not engine.has_unfinished_requests and pool.num_free_blocks == pool.num_blocks


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    """Return the text of each output."""
    return [output.outputs[0].text for output in outputs]
