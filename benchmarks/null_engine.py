"""A server over an engine that costs next to nothing, in a process of its own: ``bench_server``.

    python -m benchmarks.null_engine [--step-ms 4]

Each step gives every request one token; there is no model, scheduler or text to make. The URL is
printed when requests are taken.
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from pyvt.config import EngineConfig
from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.server.run import (
    UnsignalledServer,
    listen,
    run_loop,
    settled,
    url_of,
    uvicorn_config,
)
from pyvt.server.state import ServerState
from pyvt.testing.fakes import FakeTokenizer
from pyvt.tokenizer import ChatTemplate

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
WORD = "word "


class NullEngine:
    """Stands in for ``LLMEngine``: every request gets the same word until its ``max_tokens``."""

    def __init__(self, step_s: float) -> None:
        tokenizer = FakeTokenizer()
        limits = InputLimits(vocab_size=260, max_model_len=1 << 20, eos_token_ids=frozenset({256}))
        template = ChatTemplate({"default": TEMPLATE}, {}, control_texts=())
        self.input_processor = InputProcessor(tokenizer, lambda: template, limits)
        self.config = EngineConfig(model="null")
        self.default_params = SamplingParams()
        self.core = SimpleNamespace(clock=time.perf_counter)
        self.num_aborted = 0
        self._step_s = step_s
        self._next_s = 0.0
        self._left: dict[str, tuple[EngineCoreRequest, bool, int, RequestMetrics]] = {}

    def close(self) -> None:
        """Nothing outlives its requests."""

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._left)

    @property
    def unfinished_request_ids(self) -> tuple[str, ...]:
        return tuple(self._left)

    def process(
        self, request_id: str, prompt: Any, params: Any, *, arrival_s: float, **more: Any
    ) -> EngineCoreRequest:
        return self.input_processor.process(request_id, prompt, params, arrival_s, **more)

    def check_admissible(self, requests: Sequence[EngineCoreRequest]) -> None:
        """All of them are."""

    def add(self, requests: Sequence[EngineCoreRequest], *, is_stream: bool = False) -> None:
        for request in requests:
            metrics = RequestMetrics(
                arrival_s=request.arrival_s, num_prompt_tokens=len(request.prompt_token_ids)
            )
            num = request.sampling_params.max_tokens or 1
            self._left[request.request_id] = (request, is_stream, num, metrics)

    def step(self) -> list[RequestOutput]:
        now_s = time.perf_counter()
        if self._next_s > now_s:
            time.sleep(self._next_s - now_s)
        self._next_s = max(now_s, self._next_s) + self._step_s
        outputs = []
        for request_id, (request, is_stream, num, metrics) in list(self._left.items()):
            metrics.num_generated_tokens += 1
            if num == 1:
                del self._left[request_id]
            else:
                self._left[request_id] = (request, is_stream, num - 1, metrics)
            if is_stream or num == 1:
                count = 1 if is_stream else metrics.num_generated_tokens
                outputs.append(self._output(request, metrics, count, is_last=num == 1))
        return outputs

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        found = [self._left.pop(name) for name in request_ids if name in self._left]
        self.num_aborted += len(found)
        return [self._output(r, metrics, 0, is_last=True) for r, _, _, metrics in found]

    def _output(
        self, request: EngineCoreRequest, metrics: RequestMetrics, count: int, *, is_last: bool
    ) -> RequestOutput:
        reason: Any = None
        if is_last:
            reason = "length" if count else "abort"
        answer = CompletionOutput(
            index=0, text=WORD * count, token_ids=(1,) * count, finish_reason=reason
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt=None,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[answer],
            finished=is_last,
            metrics=metrics,
        )


def null_llm(step_s: float) -> AsyncLLM:
    """Return an ``AsyncLLM`` over a null engine."""
    engine: Any = NullEngine(step_s)
    return AsyncLLM.from_engine(engine)


def null_state(llm: AsyncLLM) -> ServerState:
    """Return the state of a server over it; the metrics of an engine are left out."""
    state = ServerState(
        config=ServerConfig(port=0, disable_uvicorn_access_log=True), names=("null",)
    )
    state.llm = llm
    return state


async def _serve(step_s: float) -> None:
    llm = settled(lambda: null_llm(step_s))()
    state = null_state(llm)
    sock = listen(state.config)
    print(url_of(state.config, sock), flush=True)
    await UnsignalledServer(uvicorn_config(state)).serve(sockets=[sock])


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=4.0)
    args = parser.parse_args()
    run_loop(_serve(args.step_ms / 1000))


if __name__ == "__main__":
    main()
