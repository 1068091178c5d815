"""POST /v1/embeddings over a tiny model: the engine's own vectors, in both encodings."""

import base64
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyvt import LLM
from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.server.app import create_app
from pyvt.server.state import ServerState
from tests.engine.tiny_model import CONFIG, write_tiny_model
from tests.server.harness import Client

TEXTS = ["Hello", "a second text", "Hello"]
SIZE = CONFIG["hidden_size"]


class Tiny(Client):
    """A server of a tiny model, and the vectors that its engine gives."""

    def __init__(self, path: str) -> None:
        llm = LLM(path, backend="numpy")
        self.vectors = {
            (pooling, is_unit): llm.embed(TEXTS, pooling=pooling, is_unit=is_unit)
            for pooling in ("last", "mean")
            for is_unit in (True, False)
        }
        llm.shutdown()
        self.llm = AsyncLLM(path, backend="numpy")
        state = ServerState(config=ServerConfig(disable_uvicorn_access_log=True), names=("tiny",))
        state.attach(self.llm)
        super().__init__(create_app(state))

    def embed(self, given: Any, **fields: Any) -> Any:
        return self.post("/v1/embeddings", {"input": given, **fields})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    server = Tiny(str(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")))
    yield server
    server.llm.thread.shutdown()


def _vectors(reply: Any) -> list[list[float]]:
    assert reply.status == 200, reply.text
    return [item["embedding"] for item in reply.json()["data"]]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("is_unit", [True, False])
def test_vectors_are_those_of_the_engine(tiny: Tiny, pooling: str, is_unit: bool) -> None:
    found = _vectors(tiny.embed(TEXTS, pooling=pooling, normalize=is_unit))

    assert found == [pytest.approx(vector, abs=1e-5) for vector in tiny.vectors[pooling, is_unit]]


def test_default_is_the_last_token_at_length_one(tiny: Tiny) -> None:
    body = tiny.embed("Hello").json()

    (item,) = body["data"]
    assert item["embedding"] == pytest.approx(tiny.vectors["last", True][0], abs=1e-5)
    assert (item["object"], item["index"], body["object"]) == ("embedding", 0, "list")
    assert body["model"] == "tiny"
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


def test_base64_holds_the_same_floats(tiny: Tiny) -> None:
    (packed,) = _vectors(tiny.embed("Hello", encoding_format="base64"))
    (plain,) = _vectors(tiny.embed("Hello", encoding_format="float"))

    assert np.frombuffer(base64.b64decode(packed), "<f4") == pytest.approx(plain, abs=1e-6)


def test_ids_are_texts(tiny: Tiny) -> None:
    ids = tiny.post("/tokenize", {"prompt": "Hello"}).json()["tokens"]

    (one,) = _vectors(tiny.embed(ids))
    several = _vectors(tiny.embed([ids, ids]))

    assert one == pytest.approx(tiny.vectors["last", True][0], abs=1e-5)
    assert several == [pytest.approx(one, abs=1e-5)] * 2


def test_fewer_dimensions_are_the_first_ones_at_length_one(tiny: Tiny) -> None:
    (short,) = _vectors(tiny.embed("Hello", dimensions=4))
    head = tiny.vectors["last", False][0][:4]

    assert short == pytest.approx([x / math.hypot(*head) for x in head], abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": [9999]}, "input"),
        ({"input": ["a", [1]]}, None),
        ({"input": "x" * 1000}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({}, "input"),
    ],
)
def test_wrong_requests_name_their_field(
    tiny: Tiny, fields: dict[str, Any], param: str | None
) -> None:
    reply = tiny.post("/v1/embeddings", fields)

    if param is None:  # texts and ids may stand side by side only where all are one or the other
        assert reply.status == 200
    else:
        assert reply.status == 400, reply.text
        assert reply.json()["error"]["param"] == param


def test_all_inputs_are_refused_with_the_one_that_does_not_fit(tiny: Tiny) -> None:
    reply = tiny.embed(["ok", "ok", "x" * 1000])

    assert reply.status == 400
    assert "1000" in reply.json()["error"]["message"]
    end_s = time.monotonic() + 60
    while tiny.llm.num_unfinished_requests and time.monotonic() < end_s:
        time.sleep(0.002)
    assert tiny.llm.num_unfinished_requests == 0
    assert len(_vectors(tiny.embed(["ok", "ok"]))) == 2


def test_text_that_is_too_long_is_refused_with_both_numbers(tiny: Tiny) -> None:
    reply = tiny.embed(["a", "x" * 128])

    assert reply.status == 400
    assert reply.json()["error"] == {
        "message": "[request] input: expected at most 127 tokens in a context of 128, got 128; "
        "send a shorter text or raise max_model_len",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }
