"""Tool calls of every dialect: right values, and the same for every way to cut the text."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvt.server.answer.events import CallArguments, CallStart, Content, Event
from pyvt.server.tool_parsers import TOOL_DIALECTS, ToolParser
from tests.server.splits import cut, every_cut, noisy_texts, parse

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object"},
            "is_on": {"type": "boolean"},
            "share": {"type": "number"},
            "any": {},
        },
    },
    "now": {"type": "object", "properties": {}},
}

PARIS = {"city": "Paris", "days": 2}


def _parser(name: str) -> ToolParser:
    return TOOL_DIALECTS[name].parser(TOOLS)


def told(events: Sequence[Event]) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content and the calls; arguments that are no JSON are given as text."""
    content = "".join(event.text for event in events if isinstance(event, Content))
    names = {event.index: event.name for event in events if isinstance(event, CallStart)}
    texts = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, CallArguments):
            texts[event.index] += event.text
    calls = [(name, _value(texts[index])) for index, name in sorted(names.items())]
    return content, calls


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def _xml(name: str, **values: str) -> str:
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


HERMES_PARIS = _hermes('{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}')
HERMES_NOW = _hermes('{"name": "now", "arguments": {}}')
XML_PARIS = _xml("get_weather", city="Paris", days="2")

CASES = [
    # hermes
    ("hermes", "just text ", ("just text ", [])),
    ("hermes", HERMES_PARIS, ("", [("get_weather", PARIS)])),
    (
        "hermes",
        f"Let me look.\n{HERMES_PARIS}\n{HERMES_NOW}\n",
        ("Let me look.", [("get_weather", PARIS), ("now", {})]),
    ),
    ("hermes", _hermes('{"arguments": {"a": [1, {"b": "}"}]}, "name": "f"}'),
     ("", [("f", {"a": [1, {"b": "}"}]})])),
    ("hermes", _hermes('{"name": "f"}'), ("", [("f", {})])),
    ("hermes", _hermes('{"name": "f", "arguments": null}'), ("", [("f", {})])),
    ("hermes", _hermes('{"name": "f", "arguments": "{\\"a\\": 1}"}'), ("", [("f", {"a": 1})])),
    ("hermes", _hermes('{"id": 7, "name": "f", "arguments": {"a": "\\"</tool_call>"}}'),
     ("", [("f", {"a": '"</tool_call>'})])),
    ("hermes", '<tool_call>{"name":"a","arguments":{}}{"name":"b","arguments":{}}</tool_call>',
     ("", [("a", {}), ("b", {})])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}}', ("", [("f", {"x": 1})])),
    ("hermes", "<tool_call>\nno json\n</tool_call>", ("<tool_call>\nno json\n</tool_call>", [])),
    ("hermes", '<tool_call>{"nam', ('<tool_call>{"nam', [])),
    ("hermes", "a <tool_ b", ("a <tool_ b", [])),
    ("hermes", f"{HERMES_PARIS} and so on", ("and so on", [("get_weather", PARIS)])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"city": "Par',
     ("", [("f", '{"city": "Par')])),
    # qwen_xml
    ("qwen_xml", XML_PARIS, ("", [("get_weather", PARIS)])),
    ("qwen_xml", f"So:\n\n{XML_PARIS}\n{_xml('now')}",
     ("So:", [("get_weather", PARIS), ("now", {})])),
    ("qwen_xml", _xml("get_weather", city='a\n"b"\n', note="null", is_on="True", share="2"),
     ("", [("get_weather", {"city": 'a\n"b"\n', "note": None, "is_on": True, "share": 2})])),
    ("qwen_xml", _xml("get_weather", tags="['a', 'b']", deep='{"k": [1]}', any="007"),
     ("", [("get_weather", {"tags": ["a", "b"], "deep": {"k": [1]}, "any": "007"})])),
    ("qwen_xml", _xml("get_weather", city="12", days="many", note="12"),
     ("", [("get_weather", {"city": "12", "days": "many", "note": "12"})])),
    ("qwen_xml", _xml("get_weather", city=""), ("", [("get_weather", {"city": ""})])),
    ("qwen_xml", _xml("get_weather", city="a < b </param x"),
     ("", [("get_weather", {"city": "a < b </param x"})])),
    ("qwen_xml", "<function=now>\n</function>\n</tool_call>", ("", [("now", {})])),
    ("qwen_xml", "<tool_call>\nhello", ("<tool_call>\nhello", [])),
    ("qwen_xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
     ("", [("get_weather", '{"city": "Par')])),
    # llama_json
    ("llama_json", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
     ("", [("get_weather", PARIS)])),
    ("llama_json", '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
     ("", [("now", {})])),
    ("llama_json", '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"a": 1}}',
     ("", [("now", {}), ("now", {"a": 1})])),
    ("llama_json", ' {"answer": 42} ', (' {"answer": 42} ', [])),
    ("llama_json", '{"name": "Bob", "parameters": {}}', ('{"name": "Bob", "parameters": {}}', [])),
    ("llama_json", '{"name": "now"}', ("", [("now", {})])),
    ("llama_json", '{"name": "now", "age": 3', ('{"name": "now", "age": 3', [])),
    ("llama_json", "Paris is {big}", ("Paris is {big}", [])),
    # mistral
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]',
     ("", [("get_weather", PARIS)])),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "f", "arguments": {}}]',
     ("", [("now", {}), ("f", {})])),
    ("mistral", 'Hm. [TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"a": "[TOOL_CALLS]"}',
     ("Hm.", [("now", {}), ("f", {"a": "[TOOL_CALLS]"})])),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', ("", [("f", {"a": 1})])),
    ("mistral", "[TOOL_CALLS]", ("[TOOL_CALLS]", [])),
    ("mistral", "[TOOL_CALLS][1]", ("[TOOL_CALLS][1]", [])),
    # pythonic
    ("pythonic", '[get_weather(city="Paris", days=2)]', ("", [("get_weather", PARIS)])),
    ("pythonic", "<|python_start|>[now(), get_weather(city='a, (b', tags=['x', None], is_on=True)]"
     "<|python_end|>",
     ("", [("now", {}), ("get_weather", {"city": "a, (b", "tags": ["x", None], "is_on": True})])),
    ("pythonic", '<|tool_call_start|>[get_weather("Paris", 2, deep={"a": [1, {"b": null}]})]'
     "<|tool_call_end|>Wait.",
     ("Wait.", [("get_weather", {**PARIS, "deep": {"a": [1, {"b": None}]}})])),
    ("pythonic", "[1, 2, 3]", ("[1, 2, 3]", [])),
    ("pythonic", 'Sure.\n<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>'
     " Done.<|tool_call_start|>[now()]<|tool_call_end|> ",
     ("Sure.Done.", [("get_weather", PARIS), ("now", {})])),
    ("pythonic", "a <|tool_call_start|>[f()]<|tool_call_end|>",
     ("a <|tool_call_start|>[f()]<|tool_call_end|>", [])),
    ("pythonic", "a [now()]", ("a [now()]", [])),
    ("pythonic", "[unknown(x=1)]", ("[unknown(x=1)]", [])),
    ("pythonic", "[get_weather", ("[get_weather", [])),
    ("pythonic", "hello", ("hello", [])),
    ("pythonic", "[get_weather(city='it\\'s')]", ("", [("get_weather", {"city": "it's"})])),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "text", "expected"), CASES)
def test_text_gives_content_and_calls(dialect: str, text: str, expected: Any) -> None:
    assert told(parse(_parser(dialect), [text])) == expected


@pytest.mark.parametrize(("dialect", "text", "expected"), CASES)
def test_every_cut_gives_the_same_events(dialect: str, text: str, expected: Any) -> None:
    every_cut(lambda: _parser(dialect), text)


WORDS = {
    "hermes": ["<tool_call>", "</tool_call>", '"name"', ":", ",", '"arguments"', '"f"', "\\",
               "[1]"],
    "qwen_xml": ["<tool_call>", "</tool_call>", "<function=", "get_weather", ">", "</function>",
                 "<parameter=", "city", "days", "</parameter>", "2"],
    "llama_json": ["<|python_tag|>", '"name"', ":", ",", '"parameters"', '"now"', ";"],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", '"name"', ":", ",", '"arguments"'],
    "pythonic": ["<|python_start|>", "<|python_end|>", "[", "]", "now(", "get_weather(", "city=",
                 ")", ",", "'", "\\", "(", "2"],
}  # fmt: skip


@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
@given(data=st.data())
def test_any_text_cut_anywhere_gives_the_same_events(dialect: str, data: st.DataObject) -> None:
    text = data.draw(noisy_texts(WORDS[dialect]))
    places = data.draw(st.lists(st.integers(0, max(len(text), 1)), max_size=8))

    whole = parse(_parser(dialect), [text])

    assert parse(_parser(dialect), cut(text, places)) == whole
    assert parse(_parser(dialect), list(text)) == whole


@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
def test_call_starts_before_its_arguments_end(dialect: str) -> None:
    text = {
        "hermes": '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa',
        "qwen_xml": "<tool_call><function=get_weather><parameter=city>\nPa",
        "llama_json": '{"name": "get_weather", "parameters": {"city": "Pa',
        "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Pa',
        "pythonic": "[get_weather(days=2, city='Pa",
    }[dialect]

    events = _parser(dialect).push(text)

    assert CallStart(0, "get_weather") in events
    assert any(isinstance(event, CallArguments) for event in events)
