"""What handlers share: the engine, the settings, and whether requests are taken."""

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Scope

from pyvt import other_names
from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM, RequestStream
from pyvt.engine.input_processor import InputProcessor, Prompt
from pyvt.errors import ConfigError, EngineDeadError, RequestError, did_you_mean
from pyvt.sampling_params import SamplingParams
from pyvt.server.answer.reasoning import REASONING_TAGS, ReasoningTags, detect_reasoning
from pyvt.server.body import read_json
from pyvt.server.metrics import Metrics
from pyvt.server.openai.schema import QueueFields, StreamOptions
from pyvt.server.sse import EventStream
from pyvt.server.tool_parsers import TOOL_DIALECTS, ToolDialect, detect_tools

T = TypeVar("T")

# Between the id of an answer and the number of one of its prompts; ids of clients have none.
PART_MARK = "#"


@dataclass(frozen=True, slots=True)
class Speech:
    """What the model's chat template says of its answers."""

    dialect: ToolDialect | None
    tags: ReasoningTags | None


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One server; everything but ``llm`` and the two flags is fixed.

    Attributes:
        config: the settings.
        names: names of the model; the first one is answered.
        llm: the engine, None while the model is loaded.
        is_draining: whether the server is being stopped.
        is_asleep: whether the model was unloaded because nobody asked; see ``sleep``.
        load: loads the model again; None for a server that never unloads it.
        waking: the load that runs.
        num_handled: requests that need the model and are being handled.
        last_handled_s: when one of them was done, on the monotonic clock.
        card: what is told of the model beside its name, since its first load.
    """

    config: ServerConfig
    names: Sequence[str]
    llm: AsyncLLM | None = None
    is_draining: bool = False
    is_asleep: bool = False
    load: Callable[[], AsyncLLM] | None = None
    waking: "asyncio.Future[None] | None" = None
    num_handled: int = 0
    last_handled_s: float = field(default_factory=time.monotonic)
    started_s: float = field(default_factory=time.time)
    metrics: Metrics = field(init=False)
    card: Mapping[str, Any] = field(default_factory=dict)
    _speech: Speech | None = None
    # Each with a text of the key that it came with.
    _streams: "weakref.WeakKeyDictionary[RequestStream, str]" = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def attach(self, llm: AsyncLLM) -> None:
        """Take a loaded engine: from now on requests are served."""
        self.llm = llm
        self.is_asleep = False
        self.metrics.attach(llm.engine)
        processor = llm.engine.input_processor
        speech = self.speech(processor)
        self.card = {
            "max_model_len": processor.limits.max_model_len,
            "capabilities": {
                "chat": processor.chat_template is not None,
                "tool_calls": None if speech.dialect is None else speech.dialect.name,
                "reasoning": None if speech.tags is None else speech.tags.opening,
            },
        }

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.names[0])
        _check_choice("tool_call_parser", self.config.tool_call_parser, TOOL_DIALECTS)
        _check_choice("reasoning_parser", self.config.reasoning_parser, REASONING_TAGS)

    def ready_llm(self) -> AsyncLLM:
        """Return the engine.

        Raises:
            RequestError: the model is still loaded, or the server is being stopped.
            EngineDeadError: the engine has stopped.
        """
        reason = self.why_not_ready()
        if self.is_draining or self.llm is None:
            code = "draining" if self.is_draining else "loading"
            reason = reason or "the model is unloaded, a request to generate loads it"
            raise RequestError(f"[server] engine: {reason}; try again later", code=code)
        if reason is not None:
            raise EngineDeadError(f"[server] engine: {reason}")
        return self.llm

    def why_not_ready(self) -> str | None:
        """Return why no request is taken; None when one is."""
        if self.is_draining:
            return "the server is being stopped"
        if self.llm is None:
            return None if self.is_asleep else "the model is being loaded"
        return None if self.llm.is_ready else "the engine has stopped"

    @property
    def status(self) -> str:
        """A word for the state of the model, for those who look at it and do not ask it."""
        if self.llm is None and not self.is_draining:
            return "asleep" if self.is_asleep else "loading"
        return "ready" if self.why_not_ready() is None else "stopped"

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return 0 if self.llm is None else self.llm.num_unfinished_requests

    def model_name(self, asked: str | None) -> str:
        """Return the name to answer with; no name asks for the model that is there.

        Raises:
            RequestError: the model has other names.
        """
        if not asked:
            return self.names[0]
        if asked not in self.names:
            raise RequestError(
                f"[request] model: {asked[:80]!r} is not served; "
                f"{did_you_mean(asked[:80], self.names)}",
                param="model",
                code="model_not_found",
            )
        return asked

    def speech(self, processor: InputProcessor) -> Speech:
        """Return what the chat template, or the settings, say of answers."""
        if self._speech is None:
            template = processor.chat_template
            text = "" if template is None else "\n".join(template.sources.values())
            self._speech = Speech(
                _chosen("tool_call_parser", self.config, TOOL_DIALECTS, detect_tools(text)),
                _chosen("reasoning_parser", self.config, REASONING_TAGS, detect_reasoning(text)),
            )
        return self._speech

    async def start(
        self,
        request: Request,
        asked: QueueFields,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        is_stream: bool,
    ) -> RequestStream:
        """Return a stream that has started: what can be refused has been.

        Args:
            request: whose key says whose KV may be shared.
            asked: its checked body, with its priority, deadline and salt.
            prompt: what to complete.
            params: how to sample.
            request_id: unique.
            is_stream: whether the engine gives each token by itself.

        Raises:
            RequestError: the request cannot be served, or the queue is full.
        """
        llm = self.ready_llm()
        limits = [s for s in (asked.timeout_s, self.config.request_timeout_s) if s is not None]
        stream = llm.generate(
            prompt,
            params,
            request_id=request_id,
            is_stream=is_stream,
            priority=asked.priority or 0,
            timeout_s=min(limits, default=None),
            waited_s=waited_s(request.scope),
            tenant=key_salt_of(request),
            cache_salt=asked.cache_salt,
        )
        await stream.start()
        self._streams[stream] = key_salt_of(request)
        return stream

    @asynccontextmanager
    async def before_deadline(self, scope: Scope) -> AsyncIterator[None]:
        """Give the work inside until the server's deadline, which counts from the request's head.

        Raises:
            RequestError: the deadline has passed.
        """
        if self.config.request_timeout_s is None:
            yield
            return
        left_s = self.config.request_timeout_s - waited_s(scope)
        try:
            async with asyncio.timeout(left_s) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RequestError(
                "[server] deadline: passed before the answer was complete", code="deadline_exceeded"
            ) from error

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the object that a request's body is, within the server's limits; read once."""
        kept = request.scope["state"]
        if "body" not in kept:
            kept["body"] = await read_json(
                request,
                max_bytes=self.config.max_body_bytes,
                max_depth=self.config.max_json_depth,
                stall_s=self.config.stall_timeout_s,
            )
        body: dict[str, Any] = kept["body"]
        return body

    def event_stream(self, chunks: AsyncIterator[bytes]) -> EventStream:
        """Return the response of a stream, under the server's limits."""
        return EventStream(
            chunks,
            keep_alive_s=self.config.keep_alive_interval_s,
            stall_s=self.config.stall_timeout_s,
        )

    def usage_in_stream(self, options: StreamOptions | None) -> tuple[bool, bool]:
        """Return whether usage ends a stream, and whether it is in every chunk."""
        has_usage = bool(options and options.include_usage)
        is_continuous = bool(options and options.continuous_usage_stats)
        return has_usage or self.config.enable_force_include_usage, is_continuous

    def abort(self, response_id: str, key_salt: str) -> bool:
        """End a request of a key by the id of its answer; return whether it was unfinished."""
        if self.llm is None:
            return False
        own = [stream.request_id for stream, salt in self._streams.items() if salt == key_salt]
        parts = [name for name in own if name.partition(PART_MARK)[0] == response_id]
        return any([self.llm.abort(name) for name in parts])

    def close_streams(self) -> None:
        """Abort what runs; clients get an event that says so."""
        for stream in list(self._streams):
            if self.llm is not None:
                self.llm.abort(stream.request_id)


def _check_choice(setting: str, name: str, table: Mapping[str, Any]) -> None:
    known = ("auto", "none", *table)
    if _own_name(setting, name) not in known:
        raise ConfigError(
            f"[config] server.{setting}: no {name[:80]!r}; {did_you_mean(name, known)}",
            field=f"server.{setting}",
        )


def _own_name(setting: str, name: str) -> str:
    """Return what a parser is called here; vLLM's names are taken."""
    return other_names.PARSERS[setting].get(name, name)


def _chosen(setting: str, config: ServerConfig, table: Any, detected: T) -> T:
    """Return the row that a setting names; ``auto`` takes what was detected, ``none`` nothing."""
    name = _own_name(setting, getattr(config, setting))
    if name == "auto":
        return detected
    return table.get(name)  # type: ignore[no-any-return]


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state


def key_salt_of(request: Request) -> str:
    """Return what divides cached prefixes by key: a text of the key that was used, or nothing."""
    return str(request.scope["state"].get("key_salt", ""))


def waited_s(scope: Scope) -> float:
    """Return the seconds since a request's head came."""
    since_s: float = scope["state"]["arrival_s"]
    return time.monotonic() - since_s


def request_id_of(request: Request) -> str:
    """Return the id that ``RequestLog`` gave to a request."""
    return str(request.scope["state"]["request_id"])


async def gathered(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results; the first failure cancels the rest and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
