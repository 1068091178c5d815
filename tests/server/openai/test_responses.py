"""Responses: inputs of every form, items, and the order of events."""

import json
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import HERMES, PLAIN, THINKING, Reply, Server
from tests.server.test_run import client_of

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
FULL = f"<think>\nhm\n</think>\n\nSo {CALL}"


def ask(server: Server, given: Any = "Hi", **fields: Any) -> Reply:
    """Ask for a response."""
    return server.post("/v1/responses", {"input": given, "max_output_tokens": 200, **fields})


def items(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (type, text) of each item."""
    found = []
    for item in body["output"]:
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        found.append((item["type"], text))
    return found


def test_whole_response_has_items(serve: Serve) -> None:
    body = ask(serve([FULL], template=THINKING), tools=[TOOL]).json()

    assert items(body) == [
        ("reasoning", "hm"),
        ("message", "So"),
        ("function_call", '{"a": 1}'),
    ]
    assert body["status"] == "completed"
    assert body["object"] == "response"
    assert body["usage"]["total_tokens"] == (
        body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
    )
    assert len({item["id"] for item in body["output"]}) == 3


def test_stream_tells_the_whole_response(serve: Serve) -> None:
    server = serve([FULL], template=THINKING)
    whole = ask(server, tools=[TOOL]).json()
    server.forget()

    stream = ask(server, tools=[TOOL], stream=True)

    events = stream.data()
    names = [e.removeprefix("event: ") for e in stream.text.split("\n") if e.startswith("event: ")]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    last = events[-1]["response"]
    assert items(last) == items(whole)
    assert last["usage"] == whole["usage"]
    for name, text in (("output_text", "So"), ("reasoning_text", "hm")):
        deltas = [e["delta"] for e in events if e["type"] == f"response.{name}.delta"]
        assert "".join(deltas) == text
    added = [e for e in events if e["type"] == "response.content_part.added"]
    assert [e["part"]["text"] for e in added] == ["", ""]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [item["id"] for item in done] == [item["id"] for item in last["output"]]


def test_cut_response_is_incomplete(serve: Serve) -> None:
    server = serve()

    body = ask(server, max_output_tokens=2).json()
    events = ask(server, max_output_tokens=2, stream=True).data()

    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["type"] == "response.incomplete"


# What the stream ends with, the fields that cut it there, and the state of each item.
CUTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"max_output_tokens": len("<think>\nh")}, ["incomplete"]),
    ({"max_output_tokens": len("<think>\nhm\n</think>\n\nS")}, ["completed", "incomplete"]),
    ({"max_output_tokens": len(FULL) - 20}, ["completed", "completed", "incomplete"]),
    ({"max_output_tokens": len(FULL) - 2}, ["completed", "completed", "completed"]),
    ({"stop": '"a'}, ["completed", "completed", "incomplete"]),
    ({"stop": "o"}, ["completed", "completed"]),
    ({}, ["completed", "completed", "completed"]),
]


@pytest.mark.parametrize(("fields", "states"), CUTS)
def test_item_that_is_cut_is_incomplete_in_every_event(
    serve: Serve, fields: dict[str, Any], states: list[str]
) -> None:
    server = serve([FULL], template=THINKING)
    whole = ask(server, tools=[TOOL], **fields).json()

    events = ask(server, tools=[TOOL], stream=True, **fields).data()

    told = [e["item"]["status"] for e in events if e["type"] == "response.output_item.done"]
    assert told == states
    assert [item["status"] for item in events[-1]["response"]["output"]] == states
    assert [item["status"] for item in whole["output"]] == states
    calls = [
        i for i in whole["output"] if (i["type"], i["status"]) == ("function_call", "completed")
    ]
    done = [e["type"] for e in events if "function_call_arguments.done" in e["type"]]
    assert len(done) == len(calls)


def test_stop_ends_a_response(serve: Serve) -> None:
    assert items(ask(serve(["a STOP b"]), stop=["STOP"]).json()) == [("message", "a ")]


def test_input_items_become_messages(serve: Serve) -> None:
    seen: list[str] = []
    server = serve(
        template=HERMES,
        before_step=lambda step: seen.extend(
            bytes(new.prompt_token_ids).decode() for new in step.new_requests
        ),
    )
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 2}'},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ]

    assert ask(server, given, instructions="Be").status == 200
    assert seen == ['[system]Be[user]Q[assistant]A(f{"x": 2})[tool]5[assistant]']


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_there_is_refused(serve: Serve, fields: dict[str, Any], param: str) -> None:
    reply = ask(serve(), **fields)

    assert reply.status == 400
    assert reply.json()["error"]["param"] == param


def test_failure_inside_a_stream_is_told(serve: Serve) -> None:
    reply = serve(failing=frozenset({"resp_bad"})).post(
        "/v1/responses", {"input": "a", "stream": True}, headers={"x-request-id": "bad"}
    )

    assert [e["type"] for e in reply.data()[-2:]] == ["error", "response.failed"]
    assert reply.data()[-1]["response"]["status"] == "failed"


def test_response_that_failed_has_what_was_made(serve: Serve) -> None:
    steps: list[Any] = []

    def fail_later(batch: Any) -> None:
        steps.append(batch)
        if len(steps) == 20:
            runner: Any = server.engine.core.runner
            runner.failing = {"resp_bad"}

    server = serve([FULL], template=THINKING, before_step=fail_later)
    body = {"input": "Hi", "tools": [TOOL], "stream": True}

    events = server.post("/v1/responses", body, headers={"x-request-id": "bad"}).data()

    assert events[-1]["type"] == "response.failed"
    output = events[-1]["response"]["output"]
    told = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert output[: len(told)] == told
    assert [item["status"] for item in output[len(told) :]] == ["incomplete"]
    kinds = ("reasoning_text", "output_text", "function_call_arguments")
    deltas = [e["delta"] for e in events if e["type"] in {f"response.{k}.delta" for k in kinds}]
    assert "".join(deltas) == "".join(text for _, text in items(events[-1]["response"]))


def test_openai_client_reads_responses(serve: Serve) -> None:
    server = serve([FULL], template=THINKING)
    tools: Any = [{**TOOL, "strict": False}]

    with client_of(server) as client:
        whole = client.responses.create(model="tiny", input="Hi", tools=tools)
        with client.responses.stream(model="tiny", input="Hi", tools=tools) as stream:
            final = stream.get_final_response()

    assert whole.output_text == "So"
    assert final.output_text == "So"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[2].arguments) == {"a": 1}  # type: ignore[union-attr]


def test_what_cannot_be_included_is_told_of(serve: Serve) -> None:
    wanted = ["reasoning.encrypted_content", "file_search_call.results"]

    warnings = ask(serve(), include=wanted, text={"verbosity": "low"}).json()["warnings"]

    assert [w.split()[0] for w in warnings] == ["'include'", "'text.verbosity'"]
    assert "file_search_call.results" in warnings[0]


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}])
def test_logprobs_are_of_the_text_alone_and_the_same_in_a_stream(
    serve: Serve, more: dict[str, Any]
) -> None:
    server = serve([FULL if more else "Paris."], template=THINKING if more else PLAIN)
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **more}

    whole = ask(server, **asked).json()
    server.forget()
    events = ask(server, stream=True, **asked).data()

    (message,) = [item for item in whole["output"] if item["type"] == "message"]
    entries = message["content"][0]["logprobs"]
    text = "".join(entry["token"] for entry in entries)
    assert ("So" if more else "Paris.") in text
    assert "hm" not in text
    assert "name" not in text
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [entry for new in deltas for entry in new] == entries
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == entries
    assert whole["top_logprobs"] == 2


@pytest.mark.parametrize(
    ("fields", "num_top"),
    [({}, None), ({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 3}, 3)],
)
def test_logprobs_are_told_where_asked_for(
    serve: Serve, fields: dict[str, Any], num_top: int | None
) -> None:
    (item,) = ask(serve(), **fields).json()["output"]

    entries = item["content"][0]["logprobs"]

    assert {len(entry["top_logprobs"]) for entry in entries} == (
        set() if num_top is None else {num_top}
    )


def test_tools_that_nobody_runs_here_are_left_out_and_told_of(serve: Serve) -> None:
    tools = [{"type": "web_search", "external_web_access": False}, TOOL, {"type": "local_shell"}]

    body = ask(serve([CALL], template=HERMES), tools=tools).json()

    assert items(body) == [("function_call", '{"a": 1}')]
    assert [text for text in body["warnings"] if "was not offered" in text] == [
        "'tools[0]' was not offered to the model: no tool of type 'web_search' is run here",
        "'tools[2]' was not offered to the model: no tool of type 'local_shell' is run here",
    ]
    assert ask(serve(["Yes."]), tools=[{"type": "web_search"}]).status == 200
