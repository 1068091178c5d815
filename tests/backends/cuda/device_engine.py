"""Engines on the backend under test, and what they answer."""

from typing import Any

from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.sampling_params import SamplingParams


def engine_on(path: str, backend: str, **settings: Any) -> LLMEngine:
    """A small engine."""
    config = engine_config(path, backend=backend, num_blocks=48, max_model_len=64, **settings)
    return build_engine(config)


def tokens_of(
    engine: LLMEngine, prompts: tuple[list[int], ...], **sampling: Any
) -> list[tuple[int, ...]]:
    """The tokens of all prompts, run together."""
    for i, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=8, ignore_eos=True, seed=i, **sampling)
        engine.add_request(str(i), prompt, params)
    found = {}
    while engine.has_unfinished_requests:
        found |= {
            output.request_id: tuple(output.outputs[0].token_ids)
            for output in engine.step()
            if output.finished
        }
    return [found[str(i)] for i in range(len(prompts))]
