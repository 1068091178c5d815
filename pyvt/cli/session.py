"""A loaded model behind a command: how it is opened, and how one answer is streamed."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import click

from pyvt import hub
from pyvt.cli.args import field_options, given
from pyvt.cli.model_path import model_path
from pyvt.cli.terminal import loading
from pyvt.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    SchedulerConfig,
    SpeculativeConfig,
    engine_config,
)
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import EngineDeadError
from pyvt.llm import LLM
from pyvt.outputs import RequestMetrics, RequestOutput
from pyvt.sampling_params import SamplingParams

# Whose fields are options of every command that loads a model, in the order of the help.
ENGINE_OPTIONS: dict[type[Any], tuple[str, ...]] = {
    EngineConfig: ("max_model_len", "chat_template", "logprobs_mode"),
    DeviceConfig: ("backend", "dtype", "threads", "expand", "act", "experts"),
    CacheConfig: (
        *("kv_cache_dtype", "memory_fraction", "gpu_memory_utilization"),
        *("num_blocks", "block_size", "enable_prefix_caching"),
    ),
    SchedulerConfig: ("max_num_seqs", "max_num_batched_tokens", "scheduling_policy"),
    SpeculativeConfig: (
        *("speculation", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"),
    ),
}
SAMPLING_FIELDS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"),
)

Message = dict[str, str]
Prompt = str | list[Message]


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say how a model is run."""
    for settings, names in reversed(ENGINE_OPTIONS.items()):
        command = field_options(settings, names)(command)
    return command


def engine_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given of ``engine_options``, for ``engine_config``."""
    return given(options, [name for names in ENGINE_OPTIONS.values() for name in names])


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose a model and how it is run."""
    model = click.option(
        "-m",
        "--model",
        default=hub.DEFAULT_MODEL,
        show_default=True,
        help="alias, org/repo, folder of a model or .gguf file",
    )
    return model(engine_options(command))


def sampling_options(defaults: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a decorator that gives a command the options of sampling, with its defaults."""
    return field_options(SamplingParams, SAMPLING_FIELDS, defaults=defaults)


@dataclass(slots=True)
class Answer:
    """What a stream has given so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    metrics: RequestMetrics | None = None
    warnings: tuple[str, ...] = ()

    def take(self, output: RequestOutput) -> None:
        """Add what is new. Raises EngineDeadError for an output that says so."""
        (new,) = output.outputs
        self.text += new.text
        self.token_ids += new.token_ids
        self.finish_reason = new.finish_reason
        self.metrics = output.metrics
        self.warnings = output.warnings
        if new.finish_reason == "error":
            raise EngineDeadError(f"[engine] request: {output.error}")


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model and the name that the user gave it."""

    llm: LLM
    name: str

    @property
    def has_chat_template(self) -> bool:
        """Whether the model can answer messages."""
        return self.llm.engine.input_processor.chat_template is not None

    def stream(
        self, prompt: Prompt, params: SamplingParams, max_tokens: int, write: Callable[[str], None]
    ) -> Answer:
        """Stream one answer into ``write``; Ctrl-C ends it with the finish reason ``abort``.

        Args:
            prompt: text to complete, or messages to answer.
            params: how to sample.
            max_tokens: the limit where ``params`` has none; less where the context has less room.
            write: gets each new piece of text.

        Raises:
            RequestError: the request cannot be served.
            EngineDeadError: the engine gave up on it.
        """
        processor = self.llm.engine.input_processor
        text = prompt if isinstance(prompt, str) else processor.render(prompt)
        ids = processor.tokenize(text)
        room = processor.limits.max_model_len - len(ids)
        if params.max_tokens is None and room > 0:
            wanted = max(max_tokens, params.min_tokens)
            params = replace(params, max_tokens=min(wanted, room))
        answer = Answer()
        with self.llm.stream(ids, params) as outputs, _interrupt(outputs.cancel):
            for output in outputs:
                answer.take(output)
                if output.outputs[0].text:
                    write(output.outputs[0].text)
        return answer

    def facts(self, answer: Answer) -> dict[str, Any]:
        """Return what ``--json`` prints of an answer."""
        device = self.llm.engine.config.device
        return {
            "text": answer.text,
            "token_ids": answer.token_ids,
            "finish_reason": answer.finish_reason,
            "model": self.name,
            "backend": device.backend,
            "dtype": device.dtype,
            "metrics": self._metrics(answer),
        }

    def _metrics(self, answer: Answer) -> dict[str, float | int | None]:
        metrics = answer.metrics or RequestMetrics(arrival_s=0.0, num_prompt_tokens=0)
        return {
            "model_load_ms": _rounded(self.llm.engine.model_load_ms),
            "prompt_tokens": metrics.num_prompt_tokens,
            "new_tokens": len(answer.token_ids),
            "prefill_ms": _rounded(metrics.prefill_ms),
            "ttft_ms": _rounded(metrics.ttft_ms),
            "mean_tpot_ms": _rounded(metrics.mean_tpot_ms),
            "decode_tokens_per_s": _rounded(metrics.decode_tokens_per_s),
        }


def open_engine(options: Mapping[str, Any]) -> LLMEngine:
    """Load the model that the options of ``model_options`` choose, pulling it where needed."""
    name = options["model"]
    path = model_path(name)
    config = engine_config(str(path), **engine_settings(options))
    with loading(name) as progress:
        return build_engine(config, progress=progress)


def open_session(options: Mapping[str, Any]) -> Session:
    """Load the model as ``open_engine`` does, for commands that talk with it."""
    return Session(LLM.from_engine(open_engine(options)), options["model"])


@contextmanager
def _interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Make the first Ctrl-C call ``cancel``; a second one raises."""
    is_cancelled = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_cancelled
        if is_cancelled:
            raise KeyboardInterrupt
        is_cancelled = True
        cancel()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
