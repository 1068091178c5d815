"""Faults of servers like this: a wrong request beside running ones, many aborts, growth."""

import asyncio
import gc
import time
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import HERMES, THINKING, Reply

VICTIM = "The victim's text is told to its end, whatever else is asked. 😀" * 4
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BAD: list[tuple[str, Any]] = [
    ("/v1/chat/completions", b"{"),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"AI": 1}}),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"999999": 1}}),
    ("/v1/chat/completions", {**CHAT, "stop_token_ids": [2**31]}),
    ("/v1/chat/completions", {**CHAT, "allowed_token_ids": [260]}),
    ("/v1/chat/completions", {**CHAT, "bad_words": [" "]}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 10**9}),
    ("/v1/chat/completions", {**CHAT, "n": 10**9}),
    ("/v1/chat/completions", {**CHAT, "stream": "true"}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"regex": "(" * 60_000}}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"regex": "(?=a)"}}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"grammar": "start: start"}}),
    ("/v1/completions", {"prompt": [999_999]}),
    ("/v1/completions", {"prompt": [-1]}),
    ("/v1/completions", {"prompt": "x" * 1000}),
    ("/v1/completions", {"prompt": ["a", "x" * 1000]}),
    ("/v1/responses", {"input": [{"type": "file"}]}),
    ("/v1/messages", {"messages": [], "max_tokens": 1}),
]


def _text(reply: Reply) -> str:
    choices = [c["choices"][0] for c in reply.data() if c["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_wrong_requests_leave_a_running_stream_alone(serve: Serve) -> None:
    server = serve([VICTIM], max_model_len=600, num_blocks=600)

    async def run() -> tuple[Reply, list[Reply]]:
        body = {**CHAT, "stream": True, "max_tokens": 400}
        victim = asyncio.ensure_future(server.ask("POST", "/v1/chat/completions", body))
        replies = [await server.ask("POST", path, bad) for path, bad in BAD]
        return await victim, replies

    victim, replies = asyncio.run(run())

    assert _text(victim) == VICTIM
    assert victim.is_done
    assert [reply.status for reply in replies] == [400] * len(BAD)
    assert all(len(reply.body) < 8192 for reply in replies)
    assert server.becomes_idle()


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_aborts_between_the_prefills_of_others_hang_nothing(serve: Serve, num_tokens: int) -> None:
    server = serve([VICTIM], max_model_len=600, num_blocks=100)

    async def one(number: int) -> None:
        left = asyncio.Event()

        async def leave(reply: Reply) -> None:
            if number % 2 and len(reply.chunks) == num_tokens:
                left.set()

        body = {**CHAT, "stream": True, "max_tokens": 50}
        await server.ask("POST", "/v1/chat/completions", body, left=left, gate=leave)

    async def run() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(one(number) for number in range(60)))

    asyncio.run(run())

    assert server.becomes_idle()
    assert server.chat(max_tokens=5).status == 200


def test_short_requests_leave_nothing_behind(serve: Serve) -> None:
    server = serve(["a"])

    async def run() -> None:
        for _ in range(30):
            asks = [server.ask("POST", "/v1/chat/completions", CHAT) for _ in range(4)]
            assert {reply.status for reply in await asyncio.gather(*asks)} == {200}

    asyncio.run(run())
    gc.collect()

    assert len(server.state._streams) == 0
    # The worker forgets the last ones with its next step.
    assert len(server.engine.core.runner.known_request_ids) <= 4  # type: ignore[attr-defined]
    assert server.becomes_idle()


def test_template_of_a_request_has_no_door(serve: Serve) -> None:
    server = serve(template=HERMES)
    kwargs = {"chat_template": "{{ 1 }}"}

    rendered = server.post(
        "/v1/chat/completions/render", {**CHAT, "chat_template_kwargs": kwargs}
    ).json()

    assert rendered["prompt"] == "[user]Hi[assistant]"
    assert server.chat(chat_template="{{ 1 }}").status == 400
    assert server.chat(chat_template_kwargs={"messages": []}).status == 400


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "kwargs", "reasoning", "content"),
    [
        ("hm\n</think>\n\nYes", {"opens": True}, "hm", "Yes"),
        ("Yes", {"enable_thinking": False}, None, "Yes"),
        ("\n\nYes", {"enable_thinking": False}, None, "Yes"),
        ("<think>\nhm\n</think>\n\nYes", None, "hm", "Yes"),
        ("Yes /no_think", None, None, "Yes /no_think"),
        ("hm", {"opens": True}, "hm", ""),
    ],
)
def test_reasoning_starts_where_the_prompt_says(
    serve: Serve, answer: str, kwargs: Any, reasoning: str | None, content: str, is_stream: bool
) -> None:
    server = serve([answer], template=THINKING)

    reply = server.chat(chat_template_kwargs=kwargs, stream=is_stream)

    if is_stream:
        deltas = [c["choices"][0]["delta"] for c in reply.data()]
        found = "".join(delta.get("reasoning", "") for delta in deltas) or None
        text = "".join(delta.get("content", "") for delta in deltas)
    else:
        message = reply.json()["choices"][0]["message"]
        found, text = message.get("reasoning"), message["content"]
    assert (found, text) == (reasoning, content)


def test_max_tokens_ends_every_route_with_its_own_word(serve: Serve) -> None:
    server = serve(["Paris."])
    one = {"max_tokens": 1}

    chat = server.post("/v1/chat/completions", {**CHAT, **one}).json()
    complete = server.post("/v1/completions", {"prompt": "a", **one}).json()
    response = server.post("/v1/responses", {"input": "a", "max_output_tokens": 1}).json()
    message = server.post("/v1/messages", {**CHAT, **one}).json()

    assert chat["choices"][0]["finish_reason"] == "length"
    assert complete["choices"][0]["finish_reason"] == "length"
    assert response["status"] == "incomplete"
    assert message["stop_reason"] == "max_tokens"


def test_deadline_ends_a_request_that_waits(serve: Serve) -> None:
    server = serve(["x" * 350], clock=time.perf_counter, before_step=lambda _: time.sleep(0.005))

    whole = server.chat(timeout_s=0.05, max_tokens=350)
    stream = server.chat(timeout_s=0.05, max_tokens=350, stream=True)

    assert (whole.status, whole.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert stream.data()[-1]["error"]["code"] == "deadline_exceeded"
    assert not stream.is_done
    assert server.becomes_idle()
