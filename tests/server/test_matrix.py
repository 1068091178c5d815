"""Every field of every route with every kind of wrong value, beside a stream that must not notice.

What is wrong by the schema of the route's model is a 400 that names the field; anything else is
served or refused, never a fault of the server. The victim is a real, tiny model whose tokens are
those that it gives alone.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.server.app import create_app
from pyvt.server.routes import ROUTES, RouteRow
from pyvt.server.state import ServerState
from tests.engine.tiny_model import CONFIG, write_tiny_model
from tests.server.harness import Client, Reply

VOCAB = 258
VICTIM = {"prompt": "victim", "max_tokens": 60, "ignore_eos": True, "temperature": 0, "seed": 3}
MESSAGES = [{"role": "user", "content": "a"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "a"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [65]},
    "/abort": {"request_id": "x"},
    "/ui/markdown": {"text": "a"},
}
VALUES: list[Any] = [
    None,
    True,
    "",
    "x",
    "a\0b",
    0,
    -1,
    1.5,
    2**31,
    2**63,
    -(10**30),
    [],
    [None],
    [""],
    [-1],
    [1.5],
    [{}],
    {},
    {"x": 1},
    {"type": "function"},
]
LEAKS = ("/home", "/usr", "/work", "Traceback", "0x", "site-packages")


class Tiny(Client):
    """A server of a tiny model."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm = llm
        self.alone: list[int] = []
        state = ServerState(config=ServerConfig(disable_uvicorn_access_log=True), names=("tiny",))
        state.attach(llm)
        super().__init__(create_app(state))

    async def victim_ids(self) -> list[int]:
        """Return the tokens of the victim's stream."""
        body = {**VICTIM, "stream": True, "return_token_ids": True}
        reply = await self.ask("POST", "/v1/completions", body)
        assert reply.is_done
        chunks = reply.data()
        return [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", ())]

    async def beside_victims(self, asks: Sequence[tuple[str, bytes]]) -> list[Reply]:
        """Ask beside victims, whose tokens are checked; returns the replies in order."""
        self.alone = self.alone or await self.victim_ids()
        assert len(self.alone) == VICTIM["max_tokens"]
        is_done = False

        async def victims() -> int:
            num = 0
            while not is_done:
                assert await self.victim_ids() == self.alone
                num += 1
            return num

        running = asyncio.ensure_future(victims())
        replies = []
        for start in range(0, len(asks), 16):
            part = asks[start : start + 16]
            headers = {"content-type": "application/json"}
            replies += await asyncio.gather(
                *(self.ask("POST", path, body, headers=headers) for path, body in part)
            )
        is_done = True
        assert await running >= 1
        return replies


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=256)
    llm = AsyncLLM(str(path))
    yield Tiny(llm)
    llm.thread.shutdown()


def _rows() -> list[RouteRow]:
    return [row for row in ROUTES if row.model is not None]


def _is_valid(schema: dict[str, Any], value: Any) -> bool:
    return not list(jsonschema.Draft202012Validator(schema).iter_errors(value))


def check_shape(path: str, reply: Reply) -> dict[str, Any]:
    """Return the error of a refusal, whose form every client can read."""
    assert reply.headers["content-type"] == "application/json"
    assert len(reply.body) < 8192
    assert not any(leak in reply.text for leak in LEAKS), reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert isinstance(error["message"], str)
    assert error["type"]
    return error


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row.path)
def test_wrong_values_are_refused_by_name_and_hurt_nobody(tiny: Tiny, row: RouteRow) -> None:
    assert row.model is not None
    schema = row.model.model_json_schema()
    shared = {"$defs": schema.get("$defs", {})}
    base = BASES[row.path]
    fields = [(name, kind) for name, kind in schema["properties"].items()]
    cases = [(name, value) for name, _ in fields for value in VALUES]
    asks = [(row.path, json.dumps({**base, name: value}).encode()) for name, value in cases]

    replies = asyncio.run(tiny.beside_victims(asks))

    kinds = dict(fields)
    for (name, value), reply in zip(cases, replies, strict=True):
        told = (name, value, reply.status, reply.text[:300])
        assert reply.status in (200, 400, 404), told
        is_wrong = value is not None and not _is_valid({**kinds[name], **shared}, value)
        if reply.status != 200:
            error = check_shape(row.path, reply)
            if is_wrong and not row.path.startswith("/v1/messages"):
                assert re.split(r"[.\[]", str(error["param"]))[0] == name, told
        assert not is_wrong or reply.status == 400, told
        if value is None and name not in schema.get("required", ()) and name not in base:
            assert reply.status == 200, told


def test_ids_beyond_the_vocabulary_are_refused_on_every_route(tiny: Tiny) -> None:
    wrong = [-1, VOCAB, CONFIG["vocab_size"] - 1, CONFIG["vocab_size"], 2**31, 2**63]
    asks: list[tuple[str, str, Any, bool]] = []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        for value in (*wrong, VOCAB - 1):
            is_right = value == VOCAB - 1
            asks += [
                (path, "logit_bias", {str(value): 1}, is_right),
                (path, "stop_token_ids", [value], is_right),
                (path, "allowed_token_ids", [value], is_right),
            ]
    asks += [("/v1/completions", "prompt", [value], False) for value in wrong]
    asks += [("/v1/completions", "prompt", [VOCAB - 1], True)]
    asks += [("/v1/embeddings", "input", [value], False) for value in wrong]

    bodies = [(path, json.dumps({**BASES[path], name: v}).encode()) for path, name, v, _ in asks]
    replies = asyncio.run(tiny.beside_victims(bodies))

    for (path, name, value, is_right), reply in zip(asks, replies, strict=True):
        told = (path, name, value, reply.text[:200])
        assert reply.status == (200 if is_right else 400), told
        if not is_right:
            assert name in check_shape(path, reply)["message"], told


RAW = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"NaN",
    b'{"temperature": NaN}',
    b'{"temperature": 1e400}',
    b'{"temperature": -Infinity}',
    b'{"max_tokens": ' + b"9" * 5000 + b"}",
    b'{"stop": "\\ud83d"}',
    b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    b'{"tools": [{"type": "function", "function": {"name": "\\udc00"}}]}',
    b'{"a": 1, "a": 2}',
    b'{"a": ' * 200 + b"1" + b"}" * 200,
    b"[" * 100_000,
    '{"prompt": "x"}'.encode("utf-16"),
    b'{"prompt": "\xff"}',
    b'{"prompt": "' + b"x" * 5000,
]


@pytest.mark.parametrize("path", BASES)
def test_bodies_that_are_no_object_are_a_small_400(tiny: Tiny, path: str) -> None:
    replies = asyncio.run(tiny.beside_victims([(path, raw) for raw in RAW]))

    for raw, reply in zip(RAW, replies, strict=True):
        assert reply.status == 400, (raw[:40], reply.text)
        check_shape(path, reply)


def test_server_lives_and_is_idle_after_all_of_it(tiny: Tiny) -> None:
    assert tiny.get("/health").json() == {"status": "ok"}
    assert tiny.post("/v1/completions", BASES["/v1/completions"]).status == 200
    metrics = tiny.get("/metrics").text
    assert 'pyvt:num_requests_running{model_name="tiny"} 0.0' in metrics
    assert 'pyvt:num_requests_waiting{model_name="tiny"} 0.0' in metrics
