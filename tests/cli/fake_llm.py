"""A command's engine over a fake worker whose answers a test writes down."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyvt.config import engine_config
from pyvt.engine.llm_engine import LLMEngine
from pyvt.messages import SchedulerOutput
from pyvt.testing.fakes import FakeTokenizer
from pyvt.tokenizer.base import RenderedPrompt
from tests.engine.engines import engine_of

EOS = FakeTokenizer.EOS


class BracketTemplate:
    """Renders ``[role:content]`` for each message."""

    def render(self, messages: Sequence[Any], **kwargs: Any) -> RenderedPrompt:
        text = "".join(f"[{m['role']}:{m['content']}]" for m in messages)
        return RenderedPrompt(text, text)


class FakeBuild:
    """Stands in for ``build_engine``: keeps what it was asked for, and every prompt.

    ``answers`` are the texts of the requests in their order; each ends with an end-of-text token.
    ``interrupt_at`` are steps, counted from 1, during which Ctrl-C is pressed.
    """

    def __init__(
        self,
        answers: Sequence[str] = ("Paris.",),
        *,
        has_template: bool = True,
        interrupt_at: Sequence[int] = (),
        max_model_len: int = 400,
        failing: Sequence[str] = (),
    ) -> None:
        self.answers = answers
        self.has_template = has_template
        self.interrupt_at = interrupt_at
        self.max_model_len = max_model_len
        self.failing = frozenset(failing)
        self.settings: dict[str, Any] = {}
        self.prompts: list[str] = []
        self.params: list[Any] = []
        self.num_steps = 0
        self._num_handled = threading.Semaphore(0)

    def __call__(self, config: Any, *, progress: Any = None) -> LLMEngine:
        parts = ("model", "device", "cache", "speculative")
        self.settings = {name: getattr(config, name) for name in parts}
        forced: Mapping[str, Sequence[int]] = {
            f"llm-{number}": [*text.encode(), EOS]
            for number, text in enumerate(self.answers, start=1)
        }
        engine = engine_of(
            forced=forced,
            failing=self.failing,
            chat_template=BracketTemplate() if self.has_template else None,
            max_model_len=self.max_model_len,
            num_blocks=200,
            before_step=self._before_step,
        )
        engine.config = engine_config(
            config.model, backend="numpy", dtype="f32", max_model_len=self.max_model_len
        )
        return engine

    def _before_step(self, step: SchedulerOutput) -> None:
        self.num_steps += 1
        for new in step.new_requests:
            ids = [i for i in new.prompt_token_ids if i < 256]
            self.prompts.append(bytes(ids).decode(errors="replace"))
            self.params.append(new.sampling_params)
        for number in self.interrupt_at:
            if number == self.num_steps:
                os.kill(os.getpid(), signal.SIGINT)
                assert self._num_handled.acquire(timeout=60), "nobody handled Ctrl-C"

    def counting(self, handler: Any) -> Any:
        """Return a handler of signals that says when it is done, so that a step can wait for it."""
        # A command puts back what it found, which may be one of these.
        handler = getattr(handler, "counted", handler)
        if not isinstance(handler, Callable):
            return handler

        def handle(*args: Any) -> None:
            try:
                handler(*args)
            finally:
                self._num_handled.release()

        handle.counted = handler
        return handle
