"""LLMEngine: the synchronous engine, from prompts to texts."""

from collections.abc import Iterable, Sequence

from pyvt.config import EngineConfig
from pyvt.engine.core import EngineCore
from pyvt.engine.input_processor import InputProcessor, Prompt
from pyvt.engine.output_processor import OutputProcessor
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams


class LLMEngine:
    """Input processor, core and output processor of one model; not safe for two threads.

    Attributes:
        config: the settings, without auto.
        model_load_ms: how long it took to build the engine.
        default_params: what a request without sampling parameters gets: the model's own.
    """

    def __init__(
        self,
        core: EngineCore,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        *,
        config: EngineConfig,
        default_params: SamplingParams | None = None,
        model_load_ms: float = 0.0,
    ) -> None:
        self.config = config
        self.default_params = default_params or SamplingParams()
        self.model_load_ms = model_load_ms
        self.core = core
        self.input_processor = input_processor
        self.output_processor = output_processor

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` would do anything."""
        return self.core.has_unfinished_requests

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, is_stream: bool = False
    ) -> None:
        """Check and queue a request; its outputs come from ``step``.

        Args:
            request_id: unique among unfinished requests.
            prompt: text, token ids or a rendered conversation.
            params: how to sample.
            is_stream: give an output with the difference in each step that has news, instead of
                one output at the end.

        Raises:
            RequestError: the request cannot be served.
        """
        self.add_requests([(request_id, prompt, params)], is_stream=is_stream)

    def add_requests(
        self,
        requests: Sequence[tuple[str, Prompt, SamplingParams]],
        *,
        is_stream: bool = False,
    ) -> None:
        """Check and queue several requests: all of them, or none where one is refused."""
        arrival_s = self.core.clock()
        processed: list[EngineCoreRequest] = [
            self.input_processor.process(request_id, prompt, params, arrival_s)
            for request_id, prompt, params in requests
        ]
        self.core.add_requests(processed)
        for request in processed:
            self.output_processor.add_request(request, is_stream=is_stream)

    def step(self) -> list[RequestOutput]:
        """Run one step; return outputs of requests that have news.

        Raises:
            EngineDeadError: the worker failed; no request will get an output any more.
        """
        outputs, stopped = self.output_processor.process(self.core.step())
        self.core.end_requests(stopped, "stop")
        return outputs

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests and free their blocks at once; unknown and finished ids are left out.

        Returns:
            The last output of each, with the text so far and finish reason ``abort``.
        """
        request_ids = list(request_ids)
        self.core.end_requests(request_ids, "abort")
        return self.output_processor.abort(request_ids)
