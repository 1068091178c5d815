"""What every client is made to do, and what it must have understood in the end.

A scenario is plain data, so that drivers in any language read it. ``text`` is what the model is
made to write (``forced_token_ids``); without it the model is free, or held by a grammar.
"""

from typing import Any

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
HI = [{"role": "user", "content": "Hi"}]
UNICODE = "😀 é 漢字 👩‍👩‍👧 ď"
THOUGHT = "<think>\nLet me see 😀.\n</think>\n\nYes."


def _call(city: str) -> str:
    return (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    )


def _called(*cities: str) -> list[list[Any]]:
    return [["get_weather", {"city": city}] for city in cities]


def _chat(text: str | None, expect: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "chat", "messages": HI, "max_tokens": 120, "text": text, **more} | {
        "expect": expect
    }


SAID = {"text": "Paris.", "calls": [], "end": "stop"}
_CHATS: dict[str, dict[str, Any]] = {
    "plain": _chat("Paris.", SAID),
    "unicode": _chat(UNICODE, {**SAID, "text": UNICODE}),
    "system": _chat("Paris.", SAID, messages=[{"role": "system", "content": "Be brief."}, *HI]),
    "history": _chat(
        "Paris.",
        SAID,
        messages=[*HI, {"role": "assistant", "content": "Hello."}, *HI],
    ),
    "stop": _chat("abcDEFGHIJxyz", {**SAID, "text": "abc"}, stop=["DEFGHIJ"]),
    "length": _chat("one two three four", {"calls": [], "end": "length"}, max_tokens=2),
    "seed": _chat("Paris.", SAID, temperature=0.5),
    "newlines": _chat("a\n\n  b\n", {**SAID, "text": "a\n\n  b\n"}),
    "reasoning": _chat(THOUGHT, {**SAID, "text": "Yes.", "reasoning": "Let me see 😀."}),
    "call": _chat(_call("Paris"), {"calls": _called("Paris"), "end": "tool_calls"}, has_tools=True),
    "calls": _chat(
        f"{_call('Paris')}\n{_call('Zürich')}",
        {"calls": _called("Paris", "Zürich"), "end": "tool_calls"},
        has_tools=True,
    ),
    "text_and_call": _chat(
        f"Let me look.\n{_call('Paris')}",
        {"text": "Let me look.", "calls": _called("Paris"), "end": "tool_calls"},
        has_tools=True,
    ),
    "result_of_a_call": _chat(
        "Sunny.",
        {**SAID, "text": "Sunny."},
        has_tools=True,
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        ],
    ),
    "required": _chat(None, {"names": ["get_weather"]}, has_tools=True, choice="required"),
    "long": _chat("word " * 80, {**SAID, "text": "word " * 80}),
}
_ONCE: dict[str, dict[str, Any]] = {
    "schema": {**_chat(None, {"is_person": True}), "kind": "schema"},
    "unknown_model": _chat("x", {"status": 404}, model="nope"),
    "wrong_value": _chat("x", {"status": 400}, temperature=-1.0),
    "too_long": _chat("x", {"status": 400}, messages=[{"role": "user", "content": "a b " * 9000}]),
    "wrong_key": _chat("x", {"status": 401}, key="wrong"),
    "leaves": {**_chat("word " * 80, {"has_left": True}), "kind": "leaves"},
    "models": {"kind": "models", "expect": {"has_model": True}},
}
# Of APIs that only some clients know.
_OTHERS: dict[str, dict[str, Any]] = {
    "completion": {
        "kind": "completion",
        "prompt": "Once",
        "text": " upon",
        "max_tokens": 20,
        "expect": {"text": "Once upon", "end": "stop"},
    },
    "response": {**_chat(THOUGHT, {"text": "Yes."}), "kind": "response"},
    "response_stream": {
        **_chat(THOUGHT, {"text": "Yes."}),
        "kind": "response",
        "is_stream": True,
    },
    "embedding": {
        "kind": "embedding",
        "inputs": ["a", "b"],
        "expect": {"count": 2, "is_unit": True},
    },
    "count": {"kind": "count", "messages": HI, "expect": {"has_tokens": True}},
    "run_tools": {**_chat(None, {"names": ["get_weather"]}), "kind": "run_tools"},
}


def scenarios() -> dict[str, dict[str, Any]]:
    """Return all scenarios by name; chats twice, whole and streamed."""
    found = {}
    for name, chat in _CHATS.items():
        found[name] = {**chat, "is_stream": False}
        found[f"{name}_stream"] = {**chat, "is_stream": True}
    found |= _ONCE | _OTHERS
    for scenario in found.values():
        scenario.setdefault("is_stream", False)
        scenario.setdefault("model", None)
    return found
