"""Bodies that are no JSON objects, or too much of one, are refused in OpenAI's shape."""

import json
from typing import Any

import pytest

from pyvt.server.body import parse_object
from pyvt.server.errors import WireException
from tests.server.conftest import Serve

BAD_BODIES = {
    "brace": b"{",
    "array": b"[]",
    "string": b'"x"',
    "empty": b"",
    "nan": b'{"temperature": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "overflow": b'{"temperature": 1e400}',
    "twice": b'{"model": "a", "model": "b"}',
    "twice_inside": b'{"messages": [{"role": "user", "role": "system"}]}',
    "deep_array": b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "deep_object": b'{"a": ' * 100 + b"1" + b"}" * 100,
    "long_number": b'{"seed": ' + b"9" * 5000 + b"}",
    "utf_16": '{"model": "x"}'.encode("utf-16"),
    "latin_1": '{"model": "é"}'.encode("latin-1"),
    "surrogate": b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    "surrogate_name": b'{"\\udc00": 1}',
    "surrogate_stop": b'{"prompt": "a", "stop": ["\\ud83dx"]}',
}
ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", ROUTES)
def test_bad_body_is_a_small_400(serve: Serve, path: str, name: str) -> None:
    server = serve()

    reply = server.post(path, BAD_BODIES[name])

    assert reply.status == 400
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert len(reply.body) < 8192
    assert not any(word in reply.text for word in ("/home", "/usr", "/root", "Traceback", "0x"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-length": "99999999999"}, 413),
    ],
)
def test_headers_of_a_body_are_checked(serve: Serve, headers: dict[str, str], status: int) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}

    assert serve().post("/v1/chat/completions", body, headers=headers).status == status


def test_body_beyond_the_limit_is_413(serve: Serve) -> None:
    server = serve(config={"max_body_bytes": 1000})

    assert server.chat("x" * 2000).status == 413
    assert server.chat("x").status == 200


TWICE = b"{" + b",".join(b'"k%d":1' % i for i in range(30_000)) + b',"k29999":2}'
MANY = {
    "values": (b'{"prompt":[' + b"1," * 1_000_000 + b"1]}", "1000000 values"),
    "objects": (b'{"prompt":[' + b"[]," * 70_000 + b"1]}", "65536 objects and arrays"),
    "names": (b"{" + b",".join(b'"k%d":1' % i for i in range(40_000)) + b"}", "32768 names"),
    "a_name_twice": (TWICE, "'k29999' twice"),
    "wrong_items": (b'{"prompt":[' + b"1.5," * 400_000 + b"1]}", "expected an integer or a text"),
    "wrong_messages": (b'{"prompt":"a","stop":[' + b"{}," * 60_000 + b"{}]}", "stop"),
    "wrong_values": (
        b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":"x"' % i for i in range(30_000)) + b"}}",
        "logit_bias.0",
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_very_many_of_anything_are_refused_before_anybody_waits(serve: Serve, name: str) -> None:
    """Without a bound each of them would take many seconds, in which no stream gets a token."""
    body, text = MANY[name]

    reply = serve().post("/v1/completions", body)

    assert reply.status == 400
    assert text in reply.json()["error"]["message"]
    assert len(reply.body) < 1000


def test_unknown_fields_are_told_of_up_to_a_number(serve: Serve) -> None:
    fields = {f"unknown_{i}": 1 for i in range(30_000)}

    warnings = serve().complete(**fields).json()["warnings"]

    assert len(warnings) == 21
    assert warnings[-1].startswith("29980 more")


def test_pairs_of_surrogates_are_text() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}', max_depth=3) == {"a": "😀"}


def test_depth_is_counted_from_the_outermost_object() -> None:
    nested: Any = 1
    for _ in range(4):
        nested = {"a": nested}
    body = json.dumps(nested).encode()

    assert parse_object(body, max_depth=5) == nested
    with pytest.raises(WireException, match="at most 4 levels"):
        parse_object(body, max_depth=4)
