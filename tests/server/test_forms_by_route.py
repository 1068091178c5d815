"""The form of a text on the routes of responses and messages, by every name that it has there."""

import json
import re
from typing import Any

import pytest

from pyvt.engine.async_llm import AsyncLLM
from tests.server.test_structure import SCHEMA, Tiny
from tests.server.test_structure import llm as llm  # a fixture

TALK = [{"role": "user", "content": "Hi"}]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
FORM = {"type": "json_schema", "schema": SCHEMA}
OF_JSON = r'\{\s*"a"\s*:\s*-?\d+\s*,\s*"b"\s*:\s*"[xy]"\s*\}'
FORMS: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"output_config": {"format": FORM}}, OF_JSON),
    (MESSAGES, {"output_config": {"format": FORM, "effort": None}}, OF_JSON),
    (MESSAGES, {"output_format": FORM}, OF_JSON),
    (MESSAGES, {"structured_outputs": {"json": SCHEMA}}, OF_JSON),
    (MESSAGES, {"structured_outputs": {"regex": "[ab]{3}c"}}, "[ab]{3}c"),
    (RESPONSES, {"structured_outputs": {"regex": "[ab]{3}c"}}, "[ab]{3}c"),
    (RESPONSES, {"structured_outputs": {"json": SCHEMA}}, OF_JSON),
]


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": "Hi", "max_output_tokens": 80, "seed": 1, **fields}
    return {"messages": TALK, "max_tokens": 80, "seed": 1, **fields}


@pytest.mark.parametrize(("path", "fields", "pattern"), FORMS)
def test_text_has_the_form_whole_and_streamed(
    llm: AsyncLLM, path: str, fields: dict[str, Any], pattern: str
) -> None:
    server = Tiny(llm, "plain")

    whole = server.post(path, body_of(path, fields)).json()
    events = server.post(path, {**body_of(path, fields), "stream": True}).data()

    text = (whole["output"][0]["content"] if path == RESPONSES else whole["content"])[0]["text"]
    deltas = [event.get("delta") for event in events if "delta" in event["type"]]
    streamed = "".join(d if isinstance(d, str) else d.get("text", "") for d in deltas)
    assert re.fullmatch(pattern, text)
    assert streamed == text
    assert "warnings" not in whole


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"output_config": {"format": {**FORM, "schema": {"not": {}}}}}, "#/not cannot"),
    (MESSAGES, {"output_config": {"format": {"type": "xml", "schema": {}}}}, "'json_schema'"),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema"}}}, "expected it, got nothing"),
    (MESSAGES, {"output_format": {**FORM, "schema": {"not": {}}}}, "#/not cannot"),
    (MESSAGES, {"output_format": FORM, "output_config": {"format": FORM}}, "not both"),
    (
        *(MESSAGES, {"structured_outputs": {"regex": "a"}, "output_config": {"format": FORM}}),
        "output_config.format: expected it or structured_outputs, not both",
    ),
    (
        *(
            RESPONSES,
            {"structured_outputs": {"regex": "a"}, "text": {"format": {**FORM, "name": "n"}}},
        ),
        "text.format: expected it or structured_outputs, not both",
    ),
]


@pytest.mark.parametrize(("path", "fields", "told"), REFUSED)
def test_form_that_cannot_be_had_is_refused_by_the_name_that_was_sent(
    llm: AsyncLLM, path: str, fields: dict[str, Any], told: str
) -> None:
    reply = Tiny(llm, "plain").post(path, body_of(path, fields))

    message = reply.json()["error"]["message"]
    assert reply.status == 400
    assert told in message
    sent = "output_format" if "output_format" in fields else "output_config.format"
    assert message.count(sent if path == MESSAGES else "text.format")
    assert "response_format" not in json.dumps(reply.json())


def test_tokens_of_a_message_with_a_form_are_counted_as_it_is_run(llm: AsyncLLM) -> None:
    server = Tiny(llm, "plain")
    fields = {"messages": TALK, "output_config": {"format": FORM}}

    counted = server.post(f"{MESSAGES}/count_tokens", fields).json()
    run = server.post(MESSAGES, {**fields, "max_tokens": 80, "seed": 1}).json()["usage"]

    assert counted == {"input_tokens": run["input_tokens"] + run["cache_read_input_tokens"]}
