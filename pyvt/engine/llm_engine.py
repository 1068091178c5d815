"""LLMEngine: the synchronous engine, from prompts to texts."""

from collections.abc import Iterable, Sequence

from pyvt.config import EngineConfig
from pyvt.engine.core import EngineCore
from pyvt.engine.fan_out import fan_out
from pyvt.engine.input_processor import InputProcessor, Prompt
from pyvt.engine.memory_plan import Plan
from pyvt.engine.output_processor import OutputProcessor
from pyvt.errors import RequestError
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams


class LLMEngine:
    """Input processor, core and output processor of one model.

    ``process`` and ``check_admissible`` may be called by any thread; the rest belongs to one.

    Attributes:
        config: the settings, without auto.
        model_load_ms: how long it took to build the engine.
        default_params: what a request without sampling parameters gets: the model's own.
        plan: what the model was expected to take of the memory; None for an engine without files.
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
        self.plan: Plan | None = None
        self.core = core
        self.input_processor = input_processor
        self.output_processor = output_processor

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` would do anything."""
        return self.core.has_unfinished_requests

    @property
    def unfinished_request_ids(self) -> tuple[str, ...]:
        """Requests that wait or run, in the order in which they were added."""
        return self.output_processor.unfinished_request_ids

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        arrival_s: float | None = None,
        timeout_s: float | None = None,
        waited_s: float = 0.0,
        tenant: str = "",
        cache_salt: str | None = None,
    ) -> EngineCoreRequest:
        """Return a checked request for ``add``.

        Args:
            request_id: unique among unfinished requests.
            prompt: text, token ids or a rendered conversation.
            params: how to sample.
            priority: the lower, the sooner.
            arrival_s: the engine clock when the request came; None for now.
            timeout_s: seconds from the arrival after which it is aborted, waiting included.
            waited_s: seconds of them that had passed elsewhere before the arrival.
            tenant: whose KV it may share; never from the text of a request.
            cache_salt: shares KV only with requests of the same salt.

        Raises:
            RequestError: the request cannot be served.
        """
        return self.input_processor.process(
            request_id,
            prompt,
            params,
            self.core.clock() if arrival_s is None else arrival_s,
            priority=priority,
            timeout_s=timeout_s,
            waited_s=waited_s,
            tenant=tenant,
            cache_salt=cache_salt,
        )

    def check_admissible(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Check that processed requests can be served at all.

        Raises:
            RequestError: one of them never can be, or its id is in use.
        """
        for request in requests:
            if request.request_id in self.output_processor:
                raise RequestError(
                    f"[request] request_id: {request.request_id!r} is in use; choose another",
                    param="request_id",
                    code="invalid_value",
                )
        self.core.check_admissible([child for request in requests for child in fan_out(request)])

    def add(self, requests: Sequence[EngineCoreRequest], *, is_stream: bool = False) -> None:
        """Queue processed requests: all of them, or none where one is refused.

        Args:
            requests: what ``process`` returned.
            is_stream: give an output with the difference in each step that has news, instead of
                one output at the end.
        """
        self.check_admissible(requests)
        answers = [fan_out(request) for request in requests]
        self.core.add_requests([child for children in answers for child in children])
        for request, children in zip(requests, answers, strict=True):
            self.output_processor.add_request(request, children, is_stream=is_stream)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, is_stream: bool = False
    ) -> None:
        """Check and queue a request; its outputs come from ``step``."""
        self.add([self.process(request_id, prompt, params)], is_stream=is_stream)

    def step(self) -> list[RequestOutput]:
        """Run one step; return outputs of requests that have news.

        Raises:
            EngineDeadError: the worker failed; no request will get an output any more.
        """
        outputs = self.output_processor.process(self.core.step())
        for reason, request_ids in self.output_processor.take_ended().items():
            self.core.end_requests(request_ids, reason)
        return outputs

    def close(self) -> None:
        """End what outlives requests; see ``EngineCore.close``."""
        self.core.close()

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests and free their blocks at once; unknown and finished ids are left out.

        Returns:
            The last output of each, with the text so far and finish reason ``abort``.
        """
        request_ids = list(request_ids)
        self.core.end_requests(self.output_processor.core_ids(request_ids), "abort")
        return self.output_processor.abort(request_ids)
