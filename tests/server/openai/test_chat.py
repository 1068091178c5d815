"""Chats: shapes, streams, reasoning, tool calls, log probabilities, usage."""

import json
from typing import Any

import pytest

from pyvt.sampling_params import SamplingParams
from pyvt.server.openai.schema import ChatRequest
from tests.server.conftest import Serve
from tests.server.harness import EOS, HERMES, PLAIN, THINKING, Reply

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def joined(reply: Reply, num_choices: int = 1) -> list[dict[str, Any]]:
    """Return the choices of a stream as a client puts them together, checking each chunk."""
    chunks = reply.data()
    assert reply.is_done
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    choices: list[dict[str, Any]] = [{"content": "", "calls": []} for _ in range(num_choices)]
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        for choice in chunk["choices"]:
            assert choice.keys() >= {"index", "delta", "finish_reason"}
            _add(choices[choice["index"]], choice)
    for choice in choices:
        choice.pop("is_call")
    return choices


def _add(to: dict[str, Any], choice: dict[str, Any]) -> None:
    assert "finish_reason" not in to, "nothing comes after the end"
    delta = dict(choice["delta"])
    if "role" not in to:
        # Null where a call is forced, so that there will be no content.
        assert delta in (
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": None},
        )
        to["role"], to["is_call"] = delta.pop("role"), delta.pop("content") is None
    assert "role" not in delta
    assert delta.get("reasoning") == delta.get("reasoning_content")
    assert not (to["is_call"] and "content" in delta)
    to["content"] += delta.get("content", "")
    if "reasoning" in delta:
        to["reasoning"] = to.get("reasoning", "") + delta["reasoning"]
    for call in delta.get("tool_calls", ()):
        if call["index"] == len(to["calls"]):
            assert call.keys() == {"index", "id", "type", "function"}
            assert call["function"]["arguments"] == ""
            to["calls"].append({**call["function"], "id": call["id"]})
        else:
            assert call["index"] == len(to["calls"]) - 1
            assert call.keys() == {"index", "function"}
            to["calls"][-1]["arguments"] += call["function"]["arguments"]
    if choice["logprobs"]:
        to.setdefault("logprobs", []).extend(choice["logprobs"]["content"])
    if choice["finish_reason"] is not None:
        assert choice["delta"] == {}
        to["finish_reason"] = choice["finish_reason"]


def whole(reply: Reply) -> list[dict[str, Any]]:
    """Return the choices of a whole answer in the form of ``joined``."""
    assert reply.status == 200, reply.text
    choices = []
    for choice in reply.json()["choices"]:
        message = choice["message"]
        assert message.get("tool_calls") != []
        assert message.get("reasoning") == message.get("reasoning_content")
        found: dict[str, Any] = {
            "role": message["role"],
            "content": message["content"] or "",
            "calls": [{**c["function"], "id": c["id"]} for c in message.get("tool_calls", ())],
            "finish_reason": choice["finish_reason"],
        }
        if "reasoning" in message:
            found["reasoning"] = message["reasoning"]
        if choice["logprobs"]:
            found["logprobs"] = choice["logprobs"]["content"]
        choices.append(found)
    return choices


def without_ids(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the choices without the random ids of calls, which are checked here."""
    for choice in choices:
        ids = [call.pop("id") for call in choice["calls"]]
        assert len(set(ids)) == len(ids)
        assert all(call_id.startswith("call_") for call_id in ids)
    return choices


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({"answers": ["Paris."]}, {}, {"content": "Paris.", "finish_reason": "stop"}),
    "emoji": (
        {"answers": ["😀 é 漢字 👩‍👩‍👧 ď"]},
        {},
        {"content": "😀 é 漢字 👩‍👩‍👧 ď", "finish_reason": "stop"},
    ),
    "broken_utf8": (
        {"answers": [[0xF0, 0x9F, 32, 97, EOS]]},
        {},
        {"content": "\ufffd a", "finish_reason": "stop"},
    ),
    "length": ({}, {"max_tokens": 3}, {"content": "Par", "finish_reason": "length"}),
    "stop": (
        {"answers": ["abcDEFGHIJxyz"]},
        {"stop": ["DEFGHIJ"]},
        {"content": "abc", "finish_reason": "stop"},
    ),
    "call": (
        {"answers": [CALL], "template": HERMES},
        {"tools": [TOOL]},
        {
            "content": "",
            "calls": [{"name": "f", "arguments": '{"a": 1}'}],
            "finish_reason": "tool_calls",
        },
    ),
    "two_calls": (
        {"answers": [f"Look: {CALL}\n{CALL}"], "template": HERMES},
        {"tools": [TOOL], "tool_choice": "auto"},
        {
            "content": "Look:",
            "calls": [{"name": "f", "arguments": '{"a": 1}'}] * 2,
            "finish_reason": "tool_calls",
        },
    ),
    "one_of_two_calls": (
        {"answers": [f"Look: {CALL}\n{CALL} and more"], "template": HERMES},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {
            "content": "Look:",
            "calls": [{"name": "f", "arguments": '{"a": 1}'}],
            "finish_reason": "tool_calls",
        },
    ),
    "cut_call": (
        {"answers": [CALL], "template": HERMES},
        {"tools": [TOOL], "max_tokens": 41},
        {
            "content": "",
            "calls": [{"name": "f", "arguments": '{"'}],
            "finish_reason": "length",
        },
    ),
    "no_tools": (
        {"answers": [CALL], "template": HERMES},
        {},
        {"content": CALL, "finish_reason": "stop"},
    ),
    "tool_choice_none": (
        {"answers": [CALL], "template": HERMES},
        {"tools": [TOOL], "tool_choice": "none"},
        {"content": CALL, "finish_reason": "stop"},
    ),
    "own_think": (
        {"answers": ["<think>\nhm\n</think>\n\nYes."], "template": THINKING},
        {},
        {"content": "Yes.", "reasoning": "hm", "finish_reason": "stop"},
    ),
    "opened_think": (
        {"answers": ["hm\n</think>\n\nYes."], "template": THINKING},
        {"chat_template_kwargs": {"opens": True}},
        {"content": "Yes.", "reasoning": "hm", "finish_reason": "stop"},
    ),
    "thinking_off": (
        {"answers": ["Yes."], "template": THINKING},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"content": "Yes.", "finish_reason": "stop"},
    ),
    "no_tags": (
        {"answers": ["Yes."], "template": THINKING},
        {},
        {"content": "Yes.", "finish_reason": "stop"},
    ),
    "stop_in_reasoning": (
        {"answers": ["<think>Question: x</think>ans Question: y"], "template": THINKING},
        {"stop": ["Question:"]},
        {"content": "ans ", "reasoning": "Question: x", "finish_reason": "stop"},
    ),
    "stop_after_reasoning_kept": (
        {"answers": ["<think>END</think>a END b"], "template": THINKING},
        {"stop": "END", "include_stop_str_in_output": True},
        {"content": "a END", "reasoning": "END", "finish_reason": "stop"},
    ),
    "stop_beside_the_tag": (
        {"answers": ["a</think>b"], "template": THINKING},
        {"stop": ["</th", "nk>x"], "chat_template_kwargs": {"opens": True}},
        {"content": "b", "reasoning": "a", "finish_reason": "stop"},
    ),
    "think_and_call": (
        {"answers": [f"<think>\nhm\n</think>\n\n{CALL}"], "template": THINKING},
        {"tools": [TOOL]},
        {
            "content": "",
            "reasoning": "hm",
            "calls": [{"name": "f", "arguments": '{"a": 1}'}],
            "finish_reason": "tool_calls",
        },
    ),
    "reasoning_not_told": (
        {"answers": ["<think>hm</think>Yes."], "template": THINKING},
        {"include_reasoning": False},
        {"content": "Yes.", "finish_reason": "stop"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_answer_whole_and_streamed(serve: Serve, name: str) -> None:
    settings, fields, expected = CASES[name]
    expected = {"role": "assistant", "calls": [], **expected}
    server = serve(**settings)

    complete, stream = server.chat(**fields), server.chat(stream=True, **fields)

    assert without_ids(whole(complete)) == [expected]
    assert without_ids(joined(stream)) == [expected]
    assert server.becomes_idle()


@pytest.mark.parametrize("name", CASES)
def test_usage_and_logprobs_of_a_stream_equal_the_whole(serve: Serve, name: str) -> None:
    settings, fields, _ = CASES[name]
    server = serve(**settings)
    fields = {**fields, "logprobs": True, "top_logprobs": 2}

    complete = server.chat(**fields)
    server.forget()
    stream = server.chat(stream=True, stream_options={"include_usage": True}, **fields)

    last = stream.data()[-1]
    assert last["choices"] == []
    assert last["usage"] == complete.json()["usage"]
    assert all(chunk["usage"] is None for chunk in stream.data()[:-1])
    assert joined(stream)[0]["logprobs"] == whole(complete)[0]["logprobs"]
    assert len(whole(complete)[0]["logprobs"]) == last["usage"]["completion_tokens"]


def test_whole_answer_has_openai_shape(serve: Serve) -> None:
    body = serve().chat().json()

    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == "tiny"
    usage = body["usage"]
    assert usage["prompt_tokens"] == len("[user]Hi[assistant]")
    assert usage["completion_tokens"] == len("Paris.") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert "warnings" not in body


def test_call_alone_has_null_content(serve: Serve) -> None:
    message = serve([CALL], template=HERMES).chat(tools=[TOOL]).json()["choices"][0]["message"]

    assert message["content"] is None


def test_reasoning_tokens_are_those_up_to_the_end_of_it(serve: Serve) -> None:
    usage = serve(["<think>hm</think>Yes"], template=THINKING).chat().json()["usage"]

    assert usage["completion_tokens"] == len("<think>hm</think>Yes") + 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>hm</think>")


def test_several_answers_have_their_own_indexes(serve: Serve) -> None:
    server = serve(["one", "two!", "three"])

    stream = server.chat(n=3, stream=True)

    assert [choice["content"] for choice in joined(stream, 3)] == ["one", "two!", "three"]
    assert [c["choices"][0]["index"] for c in stream.data()[:3]] == [0, 1, 2]
    usage = serve(["one", "two!", "three"]).chat(n=3).json()["usage"]
    assert usage["prompt_tokens"] == len("[user]Hi[assistant]")
    assert usage["completion_tokens"] == 3 + 1 + 4 + 1 + 5 + 1


def test_stream_options_may_be_absent_null_or_empty(serve: Serve) -> None:
    server = serve()

    for fields in ({}, {"stream_options": None}, {"stream_options": {}}):
        reply = server.chat(stream=True, **fields)
        assert joined(reply)[0]["content"] == "Paris."
        assert all("usage" not in chunk for chunk in reply.data())


def test_usage_can_be_in_every_chunk_and_forced(serve: Serve) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    continuous = serve().chat(stream=True, stream_options=options).data()
    forced = serve(config={"enable_force_include_usage": True}).chat(stream=True).data()

    counts = [c["usage"]["completion_tokens"] for c in continuous[1:]]
    assert counts == sorted(counts)
    assert counts[-1] == 7
    assert forced[-1]["usage"]["completion_tokens"] == 7


def test_logprobs_have_true_bytes_and_k_alternatives(serve: Serve) -> None:
    content = serve(["é"]).chat(logprobs=True, top_logprobs=3).json()["choices"][0]["logprobs"]

    first = content["content"][0]
    assert first["bytes"] == [0xC3]
    assert first["token"] == "\ufffd"
    assert [len(entry["top_logprobs"]) for entry in content["content"]] == [3, 3, 3]
    assert content["refusal"] is None


def test_own_defaults_hold_until_a_field_is_given(serve: Serve) -> None:
    seen: list[SamplingParams] = []
    server = serve(
        own=SamplingParams(presence_penalty=0.5, temperature=0.3),
        before_step=lambda step: seen.extend(r.sampling_params for r in step.new_requests),
    )

    server.chat()
    server.chat(presence_penalty=0.0, temperature=None)

    assert [(p.presence_penalty, p.temperature) for p in seen] == [(0.5, 0.3), (0.0, 0.3)]


def test_continued_message_ends_the_prompt(serve: Serve) -> None:
    server = serve()
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The capital"}]
    fields = {"messages": messages, "continue_final_message": True}

    rendered = server.post("/v1/chat/completions/render", fields).json()

    assert rendered["prompt"] == "[user]a[assistant]The capital"
    assert server.chat(**fields).status == 200


@pytest.mark.parametrize(
    "written", ["i", "<", "end", "|>", "\n", "assistant", "a ", "\uf8ff", "hi"]
)
def test_continued_message_may_be_any_text_that_the_template_has_too(
    serve: Serve, written: str
) -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|im_end|>\n{% endfor %}"
    server = serve(template=template)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": written}]
    fields = {"messages": messages, "continue_final_message": True}

    rendered = server.post("/v1/chat/completions/render", fields).json()

    assert rendered["prompt"] == f"<|user|>\nhi<|im_end|>\n<|assistant|>\n{written}"


@pytest.mark.parametrize("in_parts", [False, True])
def test_continued_reasoning_is_read_as_reasoning(serve: Serve, in_parts: bool) -> None:
    text = "<think>\nso"
    content = [{"type": "text", "text": text}] if in_parts else text
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    server = serve([" it is</think>42"], template=THINKING)

    (choice,) = server.chat(messages=messages, continue_final_message=True).json()["choices"]

    assert choice["message"]["reasoning_content"] == " it is"
    assert choice["message"]["content"] == "42"


def test_history_reaches_the_template_as_objects(serve: Serve) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"},
    ]

    rendered = serve(template=HERMES).post("/v1/chat/completions/render", {"messages": messages})

    assert rendered.json()["prompt"] == '[system]Be[assistant](f{"a": 1})[tool]5[assistant]'


def test_unknown_fields_are_told_of(serve: Serve) -> None:
    server = serve()
    fields = {"max_tokns": 3, "guided_json": {}, "user": "me", "num_ctx": 5}

    warnings = server.chat(**fields).json()["warnings"]
    streamed = server.chat(stream=True, **fields).data()[0]["warnings"]

    assert streamed == warnings
    assert [w.split()[0] for w in warnings] == ["'max_tokns'", "'guided_json'", "'num_ctx'"]
    assert "did you mean 'max_tokens'?" in warnings[0]
    assert "structured_outputs" in warnings[1]


def test_unknown_fields_of_settings_are_told_of_and_nulls_are_not(serve: Serve) -> None:
    options = {"include_usge": True, "spare": None}

    warnings = serve().chat(stream=True, stream_options=options, guided_json=None).data()[0]

    assert [w.split()[0] for w in warnings["warnings"]] == ["'stream_options.include_usge'"]
    assert "did you mean 'include_usage'?" in warnings["warnings"][0]


def test_stream_of_a_forced_call_begins_without_content(serve: Serve) -> None:
    chunks = serve([CALL], template=HERMES).chat(
        tools=[TOOL], tool_choice="required", stream=True, max_tokens=100
    )

    first, *rest = [chunk["choices"][0]["delta"] for chunk in chunks.data()]
    assert first == {"role": "assistant", "content": None}
    assert not any("content" in delta for delta in rest)


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "stream_text": ({"stream": "true"}, 400, "stream"),
    "no_messages": ({"messages": []}, 400, "messages"),
    "messages_number": ({"messages": 3}, 400, "messages"),
    "no_role": ({"messages": [{"content": "a"}]}, 400, "messages[0].role"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        400,
        "messages[0].content[0]",
    ),
    "other_model": ({"model": "gpt-4"}, 404, "model"),
    "path_model": ({"model": "../../etc/passwd"}, 404, "model"),
    "max_tokens_zero": ({"max_tokens": 0}, 400, "max_tokens"),
    "max_tokens_minus": ({"max_tokens": -1}, 400, "max_tokens"),
    "max_tokens_text": ({"max_tokens": "5"}, 400, "max_tokens"),
    "too_long": ({"max_tokens": 4000}, 400, "max_tokens"),
    "temperature": ({"temperature": -1}, 400, "temperature"),
    "n_zero": ({"n": 0}, 400, "n"),
    "n_large": ({"n": 10**9}, 400, "n"),
    "n_over": ({"n": 129}, 400, "n"),
    "n_below": ({"n": -1}, 400, "n"),
    "empty_stop": ({"stop": ""}, 400, "stop"),
    "bias_word": ({"logit_bias": {"AI": 1}}, 400, "logit_bias"),
    "bias_beyond": ({"logit_bias": {"260": 1}}, 400, "logit_bias"),
    "stop_id_beyond": ({"stop_token_ids": [2**31]}, 400, "stop_token_ids"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    "top_logprobs_alone": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "own_template": ({"chat_template": "{{ 1 }}"}, 400, "chat_template"),
    "tools_of_no_dialect": ({"tools": [TOOL]}, 400, "tools"),
    "tool_kind": ({"tools": [{"type": "web"}]}, 400, "tools[0].type"),
    "timeout": ({"timeout_s": 0}, 400, "timeout_s"),
    "best_of": ({"best_of": 3}, 400, "best_of"),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_bad_field_is_refused_before_a_stream_begins(
    serve: Serve, name: str, is_stream: bool
) -> None:
    fields, status, param = REFUSED[name]
    server = serve(template=PLAIN)

    reply = server.chat(**{"stream": is_stream, **fields})

    assert reply.status == status
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["code"] is None or isinstance(reply.json()["error"]["code"], str)
    assert len(reply.body) < 2000
    assert server.becomes_idle()
    assert server.chat().status == 200


def test_prompt_that_is_too_long_is_told_both_numbers(serve: Serve) -> None:
    error = serve().chat("x" * 500, max_tokens=None).json()["error"]

    assert error["code"] == "context_length_exceeded"
    assert "400" in error["message"]
    assert str(len("[user][assistant]") + 500) in error["message"]


def test_null_is_absence_for_every_field(serve: Serve) -> None:
    server = serve(template=HERMES)
    names = [name for name in ChatRequest.model_fields if name not in ("messages", "max_tokens")]

    alone = [server.chat(**{name: None}) for name in names]
    together = server.chat(**dict.fromkeys(names))

    for reply in (*alone, together):
        assert whole(reply)[0]["content"] == "Paris."


def test_engine_failure_inside_a_stream_is_an_error_event(serve: Serve) -> None:
    reply = serve(failing=frozenset({"chatcmpl-bad"})).post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "stream": True},
        headers={"x-request-id": "bad"},
    )

    assert reply.status == 200
    last = reply.data()[-1]["error"]
    assert last["type"] == "server_error"
    assert not reply.is_done
    assert "finite" not in json.dumps(last)


def test_engine_failure_of_a_whole_answer_is_500_once(serve: Serve) -> None:
    server = serve(failing=frozenset({"chatcmpl-bad"}))

    reply = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}]},
        headers={"x-request-id": "bad"},
    )

    assert reply.status == 500
    assert reply.headers["x-should-retry"] == "false"
    assert server.chat().status == 200


@pytest.mark.parametrize("template", [PLAIN, THINKING])
def test_stop_without_text_is_refused_with_reasoning_too(serve: Serve, template: str) -> None:
    reply = serve(["a"], template=template).chat(stop="")

    assert reply.status == 400
    assert reply.json()["error"]["param"] == "stop"


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"n": 2}, {"return_token_ids": True}, {}])
@pytest.mark.parametrize(
    ("stops", "stop_reason"),
    [({"stop": "r"}, "r"), ({"stop_token_ids": [114]}, 114), ({}, None), ({"max_tokens": 2}, None)],
)
def test_last_chunk_tells_what_stopped_the_answer_as_the_whole_does(
    serve: Serve, stops: dict[str, Any], stop_reason: Any, fields: dict[str, Any]
) -> None:
    server = serve(["Paris."])

    choices = server.chat(**stops, **fields).json()["choices"]
    chunks = [
        c for chunk in server.chat(**stops, **fields, stream=True).data() for c in chunk["choices"]
    ]

    last = [chunk["stop_reason"] for chunk in chunks if chunk["finish_reason"] is not None]
    assert last == [choice["stop_reason"] for choice in choices] == [stop_reason] * len(choices)
    assert not any("stop_reason" in chunk for chunk in chunks if chunk["finish_reason"] is None)
