"""Texts that the model is made to write, token by token, in every way to cut them into tokens.

The tokenizer is Qwen3's own, the model tiny. ``forced_token_ids`` drives what reads the tokens:
the detokenizer, stop strings, reasoning and tool calls, on every route, whole and streamed.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.server.app import create_app
from pyvt.server.state import ServerState
from pyvt.tokenizer import ChatTemplate
from tests.cli.tiny_files import write_talker
from tests.server.harness import HERMES, PLAIN, THINKING, Client, Reply
from tests.server.openai.test_chat import joined, whole, without_ids

MESSAGES = [{"role": "user", "content": "Hi"}]
TEMPLATES = {
    "plain": PLAIN,
    "hermes": HERMES,
    "thinking": THINKING,
    "qwen_xml": PLAIN + "{# <function= <parameter= <tool_call> #}",
    "llama_json": PLAIN + '{# "parameters": <|python_tag|> #}',
    "mistral": PLAIN + "{# [TOOL_CALLS] #}",
    "pythonic": PLAIN + "{# [func_name1(params_name1=1)] #}",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich 😀"}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich 😀\n</parameter>\n"
    "</function>\n</tool_call>"
)
ZURICH = {"name": "get_weather", "arguments": '{"city": "Zürich 😀"}'}


class Talker(Client):
    """A server whose model writes what it is told to."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.processor = llm.engine.input_processor
        self.tokenizer = self.processor.tokenizer
        self.bytes = {self.tokenizer.token_bytes(i): i for i in range(256)}
        state = ServerState(config=ServerConfig(disable_uvicorn_access_log=True), names=("talker",))
        state.attach(llm)
        self.state = state
        super().__init__(create_app(state))

    def speak(self, template: str) -> None:
        """Take another chat template."""
        made = ChatTemplate.for_tokenizer({"default": TEMPLATES[template]}, self.tokenizer)
        self.processor._chat_template = lambda: made
        self.state._speech = None

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def spelled(self, data: bytes) -> list[int]:
        """Return a token for each byte."""
        return [self.bytes[bytes([byte])] for byte in data]

    def cuts(self, text: str, *, step: int = 1) -> Iterator[list[int]]:
        """Yield the text's own tokens, its bytes, and its tokens when it is cut in two anywhere."""
        yield self.encode(text)
        yield self.spelled(text.encode())
        for place in range(1, len(text), step):
            yield self.encode(text[:place]) + self.encode(text[place:])

    def forced(self, ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """Return the fields that make the model write tokens and end."""
        eos = self.tokenizer.eos_token_ids[0]
        return {"forced_token_ids": [*ids, eos], "temperature": 0, **fields}

    def all(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[Reply]:
        """Ask for all answers at once, so that they run in one batch."""

        async def run() -> list[Reply]:
            return list(await asyncio.gather(*(self.ask("POST", path, body) for body in bodies)))

        return asyncio.run(run())

    def chats(self, many: Sequence[Sequence[int]], **fields: Any) -> list[Reply]:
        body = {"messages": MESSAGES, "max_tokens": 200, **fields}
        return self.all("/v1/chat/completions", [self.forced(ids, **body) for ids in many])


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[AsyncLLM]:
    path = write_talker(tmp_path_factory.mktemp("talker"), qwen3_tokenizer_dir)
    found = AsyncLLM(str(path), backend="auto")
    yield found
    found.thread.shutdown()


@pytest.fixture
def talker(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> Talker:
    monkeypatch.setenv("PYVT_TEST_HOOKS", "1")
    found = Talker(llm)
    found.speak("plain")
    return found


def test_forced_tokens_are_refused_without_the_hook(
    talker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYVT_TEST_HOOKS")

    (reply,) = talker.chats([[1]])

    assert reply.status == 400
    assert reply.json()["error"]["param"] == "forced_token_ids"


# Template, text, fields, and what the client gets of it.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "unicode": (
        "plain",
        "😀 é 漢字 👩‍👩‍👧 ď",
        {},
        {"content": "😀 é 漢字 👩‍👩‍👧 ď", "finish_reason": "stop"},
    ),
    "stop": (
        "plain",
        "abcDEFGHIJxyz",
        {"stop": ["DEFGHIJ"]},
        {"content": "abc", "finish_reason": "stop"},
    ),
    "stops_that_share_an_end": (
        "plain",
        "Hi.\nUser:\nx",
        {"stop": ["User:\n", "Assistant:\n"]},
        {"content": "Hi.\n", "finish_reason": "stop"},
    ),
    "stop_that_begins_another": (
        "plain",
        "one two three",
        {"stop": ["two three four", "two"]},
        {"content": "one ", "finish_reason": "stop"},
    ),
    "stop_that_does_not_come": (
        "plain",
        "abcDEFGHI",
        {"stop": ["DEFGHIJ"]},
        {"content": "abcDEFGHI", "finish_reason": "stop"},
    ),
    "stop_in_the_reasoning": (
        "thinking",
        "<think>Question: x</think>ans",
        {"stop": ["Question:"]},
        {"content": "ans", "reasoning": "Question: x", "finish_reason": "stop"},
    ),
    "stop_beside_the_tag": (
        "thinking",
        "<think>a</think>b",
        {"stop": ["nk>b", "wxyz"]},
        {"content": "b", "reasoning": "a", "finish_reason": "stop"},
    ),
    "reasoning": (
        "thinking",
        "<think>\nhm 😀\n</think>\n\nJa.",
        {},
        {"content": "Ja.", "reasoning": "hm 😀", "finish_reason": "stop"},
    ),
    "call": (
        "hermes",
        f"Look: {CALL}",
        {"tools": [TOOL]},
        {"content": "Look:", "calls": [ZURICH], "finish_reason": "tool_calls"},
    ),
    "calls_after_reasoning": (
        "thinking",
        f"<think>\nhm\n</think>\n\n{CALL}\n{CALL}",
        {"tools": [TOOL]},
        {
            "content": "",
            "reasoning": "hm",
            "calls": [ZURICH, ZURICH],
            "finish_reason": "tool_calls",
        },
    ),
    "xml_call": (
        "qwen_xml",
        XML_CALL,
        {"tools": [TOOL]},
        {"content": "", "calls": [ZURICH], "finish_reason": "tool_calls"},
    ),
}


@pytest.mark.parametrize(
    ("name", "num_cuts"),
    [
        *(pytest.param(name, 24, id=name) for name in CASES),
        *(pytest.param(name, None, id=f"{name}-all", marks=pytest.mark.slow) for name in CASES),
    ],
)
def test_text_is_read_alike_however_it_is_cut_into_tokens(
    talker: Talker, name: str, num_cuts: int | None
) -> None:
    template, text, fields, expected = CASES[name]
    talker.speak(template)
    expected = {"role": "assistant", "calls": [], **expected}
    step = 1 if num_cuts is None else 1 + len(text) // num_cuts
    cuts = list(talker.cuts(text, step=step))

    streams = talker.chats(cuts, stream=True, **fields)
    wholes = talker.chats(cuts[:3], **fields)

    for reply, cut in zip(streams, cuts, strict=True):
        (choice,) = without_ids(joined(reply))
        assert choice == expected, cut
        if name == "unicode":
            assert "\\ufffd" not in reply.text
            assert "\ufffd" not in reply.text
        if name.startswith("stop") and "DEF" not in str(expected):
            assert '"content":"D' not in reply.text
    assert [without_ids(whole(reply)) for reply in wholes] == [[expected]] * len(wholes)


def test_bytes_that_are_no_character_give_one_mark_and_cost_nothing_else(talker: Talker) -> None:
    emoji = "😀".encode()
    half = talker.spelled(emoji[:2]) + talker.encode(" a")
    both = talker.spelled(emoji[:2]) + talker.spelled(emoji[2:]) + talker.encode(" a")

    for is_stream, read in ((True, joined), (False, whole)):
        replies = talker.chats([half, both], stream=is_stream)
        texts = [read(reply)[0]["content"] for reply in replies]
        assert texts == ["\ufffd a", "😀 a"]


def test_any_tokens_stream_as_they_are_detokenised(talker: Talker) -> None:
    draw = random.Random(5)
    vocab = [i for i in range(151_643) if talker.tokenizer.token_bytes(i)]
    many = [draw.sample(vocab, 3) for _ in range(40)]
    many += [talker.spelled(bytes(draw.randrange(128, 256) for _ in range(4))) for _ in range(20)]

    replies = talker.all(
        "/v1/completions",
        [talker.forced(ids, prompt="a", max_tokens=50, stream=True) for ids in many],
    )
    for reply, ids in zip(replies, many, strict=True):
        text = "".join(chunk["choices"][0]["text"] for chunk in reply.data())
        assert text == talker.post("/detokenize", {"tokens": ids}).json()["prompt"], ids


def test_marker_of_a_role_never_reaches_the_content(talker: Talker) -> None:
    specials = talker.encode("<|im_start|>")
    assert len(specials) == 1

    replies = talker.chats(
        [talker.encode("Yes.") + specials + talker.encode("user\nmore")], stream=True
    )

    (choice,) = joined(replies[0])
    assert "<|im_start|>" not in choice["content"]
    assert choice["content"].startswith("Yes.")


STOP_ROUTES: dict[str, tuple[str, dict[str, Any], str]] = {
    "completions": ("/v1/completions", {"prompt": "a", "max_tokens": 99}, "stop"),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 99}, "stop"),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 99}, "stop"),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 99}, "stop_sequences"),
}


def streamed_text(reply: Reply) -> str:
    """Return the text of a stream of any route."""
    text = ""
    for event in reply.data():
        for choice in event.get("choices") or ():
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        if event.get("type") == "response.output_text.delta":
            text += event["delta"]
        if event.get("type") == "content_block_delta":
            text += event["delta"].get("text", "")
    return text


def whole_text(reply: Reply) -> str:
    """Return the text of a whole answer of any route."""
    body = reply.json()
    if "choices" in body:
        choices = body["choices"]
        return "|".join(c["text"] if "text" in c else c["message"]["content"] for c in choices)
    if "output" in body:
        return "".join(item["content"][0]["text"] for item in body["output"])
    return "".join(block["text"] for block in body["content"])


@pytest.mark.parametrize("route", STOP_ROUTES)
def test_stop_is_honoured_on_every_route(talker: Talker, route: str) -> None:
    path, body, stop = STOP_ROUTES[route]
    fields = talker.forced(talker.encode("one two three"), **body, **{stop: ["two"]})

    (streamed,) = talker.all(path, [{**fields, "stream": True}])
    (plain,) = talker.all(path, [fields])

    assert streamed_text(streamed) == "one "
    assert whole_text(plain) == "one "
    if route in ("completions", "chat"):
        (several,) = talker.all(path, [{**fields, "n": 2}])
        assert whole_text(several) == "one |one "


@pytest.mark.parametrize("is_stream", [False, True])
def test_call_that_is_cut_ends_with_length(talker: Talker, is_stream: bool) -> None:
    talker.speak("hermes")
    ids = talker.encode(CALL)

    (reply,) = talker.chats([ids], tools=[TOOL], stream=is_stream, max_tokens=len(ids) - 4)

    (choice,) = joined(reply) if is_stream else whole(reply)
    assert choice["finish_reason"] == "length"
    assert choice["calls"][0]["name"] == "get_weather"
    with pytest.raises(ValueError, match=r"\w"):
        json.loads(choice["calls"][0]["arguments"])


def test_tokens_of_two_requests_in_a_batch_do_not_mix(talker: Talker) -> None:
    texts = ["😀 é 漢字", "👩‍👩‍👧 ď ž", "plain", "ß" * 20]

    replies = talker.chats([talker.spelled(text.encode()) for text in texts], stream=True)

    assert [joined(reply)[0]["content"] for reply in replies] == texts


FORECAST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
STRICT = {"name": "forecast", "parameters": FORECAST, "strict": True}
# By template: how a call of ``forecast`` begins that its schema does not allow, and a right one.
WRONG_CALLS = {
    "hermes": (
        'Well. <tool_call>\n{"name": "forecast", "arguments": {"town": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "forecast", "arguments": {"city": "Zürich", "days": 2}}\n'
        "</tool_call>",
    ),
    "qwen_xml": (
        "Well. <tool_call>\n<function=forecast>\n<parameter=days>\nmany\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=forecast>\n<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    "llama_json": (
        '{"name": "forecast", "parameters": {"days": "many"}}',
        '{"name": "forecast", "parameters": {"city": "Zürich", "days": 2}}',
    ),
    "mistral": (
        'Well. [TOOL_CALLS][{"name": "forecast", "arguments": {"city": 1}}]',
        '[TOOL_CALLS][{"name": "forecast", "arguments": {"city": "Zürich", "days": 2}}]',
    ),
    "pythonic": ("[forecast(city=1)]", '[forecast(city="Zürich", days=2)]'),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("template", WRONG_CALLS)
def test_strict_call_that_the_model_begins_itself_keeps_its_schema(
    talker: Talker, template: str, is_stream: bool
) -> None:
    talker.speak(template)
    wrong, right = (talker.encode(text) for text in WRONG_CALLS[template])
    tools = [{"type": "function", "function": STRICT}, TOOL]

    free, kept, held = talker.chats(
        [talker.encode("No call: {1} <b>"), right, wrong],
        tools=tools,
        stream=is_stream,
        parallel_tool_calls=False,
    )

    (free_choice,), (kept_choice,), (held_choice,) = (
        joined(reply) if is_stream else whole(reply) for reply in (free, kept, held)
    )
    assert free_choice["content"] == "No call: {1} <b>"
    assert kept_choice["content"] == ""
    assert [call["name"] for call in kept_choice["calls"]] == ["forecast"]
    assert json.loads(kept_choice["calls"][0]["arguments"]) == {"city": "Zürich", "days": 2}
    assert held_choice["finish_reason"] == "tool_calls"
    assert held_choice["content"] == ("Well." if "Well." in WRONG_CALLS[template][0] else "")
    (call,) = held_choice["calls"]
    jsonschema.validate(json.loads(call["arguments"]), FORECAST)
    assert "warnings" not in free.text


def test_strict_calls_may_be_several_and_come_after_reasoning(talker: Talker) -> None:
    talker.speak("thinking")
    _, right = WRONG_CALLS["hermes"]
    thought = '<think>\n<tool_call>\n{"name": "x"}\n</think>\n\n'
    texts = [f"{thought}Two:\n{right}\n{right}", '\n<tool_call>{"name": "x"}\n</think>\n\nSo.']
    body = {"tools": [{"type": "function", "function": STRICT}], "stream": True}

    (several,) = talker.chats([talker.encode(texts[0])], **body)
    (opened,) = talker.chats(
        [talker.encode(texts[1])], chat_template_kwargs={"opens": True}, **body
    )

    (choice,) = joined(several)
    assert choice["reasoning"] == '<tool_call>\n{"name": "x"}'
    assert choice["content"] == "Two:"
    assert [json.loads(call["arguments"])["days"] for call in choice["calls"]] == [2, 2]
    (choice,) = joined(opened)
    assert choice["content"] == "So."
    assert choice["reasoning"] == '<tool_call>{"name": "x"}'


def test_strict_call_keeps_its_schema_on_every_route(talker: Talker) -> None:
    talker.speak("hermes")
    wrong = talker.encode(WRONG_CALLS["hermes"][0])
    one = {"name": "forecast", "strict": True}
    response = {"input": "a", "max_output_tokens": 120, "parallel_tool_calls": False}
    message = {"messages": MESSAGES, "max_tokens": 120}
    message["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    message["tools"] = [{**one, "input_schema": FORECAST}]
    response["tools"] = [{**one, "type": "function", "parameters": FORECAST}]

    (answer,) = talker.all("/v1/responses", [talker.forced(wrong, **response)])
    (reply,) = talker.all("/v1/messages", [talker.forced(wrong, **message)])

    text, called = answer.json()["output"]
    assert text["content"][0]["text"] == "Well."
    jsonschema.validate(json.loads(called["arguments"]), FORECAST)
    text, used = reply.json()["content"]
    assert text["text"] == "Well."
    jsonschema.validate(used["input"], FORECAST)
    assert used["name"] == "forecast"
