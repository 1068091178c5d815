"""A server over a fake model, asked through ASGI: no socket, no model, whole control."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.sampling_params import SamplingParams
from pyvt.server.app import create_app
from pyvt.server.state import ServerState
from pyvt.testing.fakes import FakeTokenizer
from pyvt.tokenizer.chat_template import ChatTemplate
from tests.engine.engines import engine_of

EOS = FakeTokenizer.EOS
# For what comes at once on a machine that has nothing else to do.
PATIENCE_S = 60.0
# A client that left is noticed within a second; a busy machine gets five.
SOON_S = 5.0

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}{{ c.function.arguments | tojson }})"
    "{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HERMES = PLAIN + '{# <tool_call> "name" "arguments" #}'
THINKING = HERMES + (
    "{% if add_generation_prompt %}{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% elif opens %}<think>\n{% endif %}{% endif %}"
)


class Script(dict[str, Sequence[int]]):
    """Answers of the requests in the order in which they first run; the last one repeats."""

    def __init__(self, answers: Sequence[str | Sequence[int]]) -> None:
        super().__init__()
        self.answers = [self._ids(answer) for answer in answers]

    @staticmethod
    def _ids(answer: str | Sequence[int]) -> list[int]:
        return [*answer.encode(), EOS] if isinstance(answer, str) else list(answer)

    def get(self, request_id: str, default: Any = None) -> Any:  # type: ignore[override]
        if request_id not in self:
            self[request_id] = self.answers[min(len(self), len(self.answers) - 1)]
        return self[request_id]


@dataclass
class Reply:
    """What a server answered."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    is_complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body, parse_constant=_no_constant)

    def data(self) -> list[Any]:
        """Return the JSON of every event of a stream, without comments and the last ``[DONE]``."""
        events = [event for event in self.text.split("\n\n") if event and event[0] != ":"]
        lines = [[*event.split("\n")] for event in events]
        assert all(len(parts) == 1 or parts[0].startswith("event: ") for parts in lines)
        assert all(parts[-1].startswith("data: ") for parts in lines)
        texts = [parts[-1].removeprefix("data: ") for parts in lines]
        return [json.loads(text, parse_constant=_no_constant) for text in texts if text != "[DONE]"]

    @property
    def is_done(self) -> bool:
        return self.text.endswith("data: [DONE]\n\n")


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class Client:
    """Asks one application; ``left`` makes the client leave, ``gate`` holds back its reading."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        self.headers = dict(headers or {})

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        left: asyncio.Event | None = None,
        gate: Callable[[Reply], Any] | None = None,
    ) -> Reply:
        data = body if isinstance(body, bytes) else b"" if body is None else _dumped(body)
        sent = {"host": "127.0.0.1:8000", **self.headers, **(headers or {})}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        reply = Reply()
        incoming = [{"type": "http.request", "body": data, "more_body": False}]
        left = left or asyncio.Event()

        async def receive() -> dict[str, Any]:
            if incoming:
                return incoming.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                pairs = message["headers"]
                reply.headers = {k.decode().lower(): v.decode("latin-1") for k, v in pairs}
                return
            if message.get("body"):
                reply.chunks.append(message["body"])
            reply.is_complete = not message.get("more_body", False)
            if gate is not None:
                await gate(reply)

        raw_path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": raw_path,
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "scheme": "http",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 1),
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent.items()],
        }
        await self.app(scope, receive, send)
        return reply

    def get(self, path: str, **more: Any) -> Reply:
        return asyncio.run(self.ask("GET", path, **more))

    def post(self, path: str, body: Any, **more: Any) -> Reply:
        return asyncio.run(self.ask("POST", path, body, **more))


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


class Server(Client):
    """A server over a fake engine; ``answers`` are what the model writes, in order."""

    def __init__(
        self,
        answers: Sequence[str | Sequence[int]] = ("Paris.",),
        *,
        template: str | None = PLAIN,
        own: SamplingParams | None = None,
        config: Mapping[str, Any] | None = None,
        names: Sequence[str] = ("tiny", "org/other"),
        max_requests: int = 256,
        **engine: Any,
    ) -> None:
        chat_template = None
        if template is not None:
            texts = FakeTokenizer.control_texts
            chat_template = ChatTemplate({"default": template}, {}, control_texts=texts)
        settings = {"max_model_len": 400, "num_blocks": 400, **engine}
        made = engine_of(forced=Script(answers), chat_template=chat_template, **settings)
        if own is not None:
            made.default_params = own
        self.engine = made
        self.llm = AsyncLLM.from_engine(made, max_requests=max_requests)
        self.state = ServerState(
            config=ServerConfig(**{"disable_uvicorn_access_log": True, **(config or {})}),
            names=names,
        )
        self.state.attach(self.llm)
        super().__init__(create_app(self.state))

    def becomes_idle(self, limit_s: float = PATIENCE_S) -> bool:
        """Return whether, within a limit, no request is left and every block is free."""
        end_s = time.monotonic() + limit_s
        while not self.is_idle and time.monotonic() < end_s:
            time.sleep(0.002)
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        pool = self.engine.core.scheduler.kv_cache_manager.pool
        is_free = pool.num_free_blocks == pool.num_blocks
        return self.llm.num_unfinished_requests == 0 and is_free

    def forget(self) -> None:
        """Forget cached prefixes."""
        self.llm.thread.call(lambda engine: engine.core.scheduler.reset_prefix_cache())

    def chat(self, text: str = "Hi", **fields: Any) -> Reply:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 200, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Hi", **fields: Any) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 200, **fields})

    def metrics(self) -> dict[str, float]:
        """Return the values of /metrics by name and labels, without ``pyvt:`` and the model's."""
        lines = self.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        found = {re.sub(r',?model_name="tiny",?', "", name): float(value) for name, value in pairs}
        return {name[5:].removesuffix("{}"): value for name, value in found.items()}

    def close(self) -> None:
        self.llm.thread.shutdown()
