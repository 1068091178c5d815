"""Completions: prompts of every form, echo, log probabilities, streams."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import EOS, Reply


def joined(reply: Reply, num_choices: int = 1) -> list[dict[str, Any]]:
    """Return the choices of a stream as a client puts them together."""
    assert reply.is_done
    choices: list[dict[str, Any]] = [{"text": "", "logprobs": None} for _ in range(num_choices)]
    for chunk in reply.data():
        assert chunk["object"] == "text_completion"
        for choice in chunk["choices"]:
            to = choices[choice["index"]]
            assert "finish_reason" not in to
            to["text"] += choice["text"]
            if choice["logprobs"]:
                to["logprobs"] = to["logprobs"] or {name: [] for name in choice["logprobs"]}
                for name, values in choice["logprobs"].items():
                    to["logprobs"][name] += values
            if choice["finish_reason"] is not None:
                to["finish_reason"] = choice["finish_reason"]
    return choices


def whole(reply: Reply) -> list[dict[str, Any]]:
    """Return the choices of a whole answer in the form of ``joined``."""
    assert reply.status == 200, reply.text
    kept = ("text", "logprobs", "finish_reason")
    return [{name: choice[name] for name in kept} for choice in reply.json()["choices"]]


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("Hi", id="text"),
        pytest.param(["Hi"], id="texts"),
        pytest.param([72, 105], id="ids"),
        pytest.param([[72, 105]], id="lists_of_ids"),
    ],
)
def test_prompt_of_every_form_is_the_same(serve: Serve, prompt: Any) -> None:
    reply = serve().complete(prompt, echo=True)

    assert whole(reply)[0]["text"] == "HiParis."
    assert reply.json()["usage"]["prompt_tokens"] == 2


CASES: dict[str, tuple[Any, dict[str, Any], list[tuple[str, str]]]] = {
    "one": ("a", {}, [("one", "stop")]),
    "several": (["a", "b", "c"], {}, [("one", "stop"), ("two!", "stop"), ("three", "stop")]),
    "answers": ("a", {"n": 2}, [("one", "stop"), ("two!", "stop")]),
    "echo": (["a", [98]], {"echo": True}, [("aone", "stop"), ("btwo!", "stop")]),
    "length": ("a", {"max_tokens": 2}, [("on", "length")]),
    "stop": ("a", {"stop": "ne"}, [("o", "stop")]),
}


@pytest.mark.parametrize("name", CASES)
def test_choices_whole_and_streamed(serve: Serve, name: str) -> None:
    prompt, fields, expected = CASES[name]
    answers = ["one", "two!", "three"]

    complete = whole(serve(answers).complete(prompt, **fields))
    stream = joined(serve(answers).complete(prompt, stream=True, **fields), len(expected))

    assert [(c["text"], c["finish_reason"]) for c in complete] == expected
    assert stream == complete


@pytest.mark.parametrize("is_stream", [False, True])
def test_answers_to_several_prompts_stand_by_prompt(serve: Serve, is_stream: bool) -> None:
    """Choice i of prompt p has the index p * n + i, with fewer rows than answers too."""
    answers = [f"{prompt}{number}" for prompt in "ab" for number in range(3)]
    server = serve(answers, max_num_seqs=2)

    reply = server.complete(["a", "b"], n=3, stream=is_stream)

    choices = joined(reply, 6) if is_stream else whole(reply)
    assert [c["text"] for c in choices] == answers


@pytest.mark.parametrize("name", ["one", "several", "answers", "length", "stop"])
def test_logprobs_and_usage_of_a_stream_equal_the_whole(serve: Serve, name: str) -> None:
    prompt, fields, expected = CASES[name]
    answers = ["one", "two!", "three"]

    complete = serve(answers).complete(prompt, logprobs=2, **fields)
    stream = serve(answers).complete(
        prompt, logprobs=2, stream=True, stream_options={"include_usage": True}, **fields
    )

    assert joined(stream, len(expected)) == whole(complete)
    assert stream.data()[-1]["usage"] == complete.json()["usage"]


def test_logprobs_have_the_legacy_layout(serve: Serve) -> None:
    logprobs = serve(["é"]).complete("a", logprobs=1).json()["choices"][0]["logprobs"]

    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "<eos>"]
    assert logprobs["token_logprobs"] == [-1.0, -1.0, -1.0]
    assert logprobs["top_logprobs"][0] == {"bytes:\\xc3": -1.0}
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


WHOLE_CHARACTERS = "é🙂漢STOPx"
# Tokens, a byte each, and the character of the text in which each of them begins.
OFFSETS: list[tuple[list[int], list[int]]] = [
    ([*WHOLE_CHARACTERS.encode()], [0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7]),
    ([0xF0, 0x9F, 0x61, 0x62], [0, 0, 1, 2]),
    ([0x80, 0x61], [0, 1]),
    ([0x61, 0xE6, 0xC3, 0xA9, 0x62], [0, 1, 2, 2, 3]),
]


@pytest.mark.parametrize("has_echo", [False, True])
@pytest.mark.parametrize(("tokens", "offsets"), OFFSETS)
def test_text_offsets_are_characters_of_the_text(
    serve: Serve, tokens: list[int], offsets: list[int], has_echo: bool
) -> None:
    server = serve([[*tokens, EOS]])
    fields = {"logprobs": 1, "echo": has_echo, "max_tokens": len(tokens)}

    (choice,) = server.complete("ab", **fields).json()["choices"]
    chunks = server.complete("ab", stream=True, **fields).data()

    before = 2 if has_echo else 0
    expected = [before + offset for offset in offsets]
    told = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    text = choice["text"][before:]
    assert choice["logprobs"]["text_offset"] == expected
    assert [offset for part in told for offset in part["text_offset"]] == expected
    assert text == bytes(tokens).decode("utf-8", "replace")
    for token, offset in zip(tokens, offsets, strict=True):
        assert token > 0x7F or text[offset] == chr(token)


def test_without_max_tokens_there_are_sixteen(serve: Serve) -> None:
    usage = serve(["x" * 50]).complete("a", max_tokens=None).json()["usage"]

    assert usage["completion_tokens"] == 16


def test_ids_are_told_on_demand(serve: Serve) -> None:
    server = serve(["ab"])

    choice = server.complete("Hi", return_token_ids=True).json()["choices"][0]
    streamed = server.complete("Hi", return_token_ids=True, stream=True).data()

    assert choice["token_ids"] == [97, 98, EOS]
    assert choice["prompt_token_ids"] == [72, 105]
    told = [token_id for c in streamed for token_id in c["choices"][0]["token_ids"]]
    assert told == [97, 98, EOS]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [999_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "echo": 1}, "echo"),
    ],
)
def test_bad_field_is_refused(serve: Serve, fields: dict[str, Any], param: str) -> None:
    server = serve()

    reply = server.post("/v1/completions", fields)

    assert reply.status == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert server.becomes_idle()


def test_unknown_fields_are_told_of_once_in_a_stream(serve: Serve) -> None:
    server = serve()

    warnings = server.complete(max_tokns=3).json()["warnings"]
    chunks = server.complete(max_tokns=3, stream=True).data()

    assert "did you mean 'max_tokens'?" in warnings[0]
    assert [chunk.get("warnings") for chunk in chunks] == [warnings, *[None] * (len(chunks) - 1)]
