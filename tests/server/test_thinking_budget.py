"""The thinking budget on every route of chats: a random model, so what is right was enforced."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyvt.engine.async_llm import AsyncLLM
from tests.engine.tiny_model import write_tiny_model
from tests.server.test_structure import FORMS, Tiny

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    """A tiny random model."""
    path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    found = AsyncLLM(str(path))
    yield found
    found.thread.shutdown()


def _letter(llm: AsyncLLM) -> str:
    return llm.engine.input_processor.tokenizer.decode([65])


ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40}),
    "responses": ("/v1/responses", {"input": "Hi", "max_output_tokens": 40}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 40}),
}


def _parts(route: str, body: dict[str, Any]) -> tuple[str, str]:
    """Return reasoning and content."""
    match route:
        case "chat":
            message = body["choices"][0]["message"]
            return message.get("reasoning", ""), message["content"]
        case "responses":
            texts = {item["type"]: item["content"][0]["text"] for item in body["output"]}
            return texts.get("reasoning", ""), texts.get("message", "")
        case _:
            thoughts = [b["thinking"] for b in body["content"] if b["type"] == "thinking"]
            return "".join(thoughts), "".join(b.get("text", "") for b in body["content"])


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("route", ROUTES)
def test_reasoning_has_at_most_its_budget(llm: AsyncLLM, route: str, budget: int) -> None:
    path, body = ROUTES[route]
    asked: dict[str, Any] = {"thinking_token_budget": budget}
    if route == "messages":
        asked = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    bias = {"logit_bias": {"65": 100}, "temperature": 0, "ignore_eos": True}

    reply = Tiny(llm, "thinking").post(path, {**body, **bias, **asked})

    assert reply.status == 200, reply.text
    reasoning, content = _parts(route, reply.json())
    assert reasoning == _letter(llm) * budget
    num_closing = len("\n</think>\n\n")
    assert content == _letter(llm) * (40 - budget - num_closing)


def test_without_a_budget_reasoning_goes_on(llm: AsyncLLM) -> None:
    bias = {"logit_bias": {"65": 100}, "temperature": 0, "ignore_eos": True}
    path, body = ROUTES["chat"]

    reply = Tiny(llm, "thinking").post(path, {**body, **bias})

    assert _parts("chat", reply.json()) == (_letter(llm) * 40, "")


def test_form_of_the_content_comes_behind_the_budget(llm: AsyncLLM) -> None:
    reply = Tiny(llm, "thinking").chat(thinking_token_budget=4, **FORMS["json_schema"][0])

    message = reply.json()["choices"][0]["message"]
    assert json.loads(message["content"]).keys() == {"a", "b"}
    usage = reply.json()["usage"]["completion_tokens_details"]
    assert usage["reasoning_tokens"] <= 4 + len("\n</think>\n\n")


@pytest.mark.parametrize("budget", [-1, "x", 1.5])
def test_wrong_budget_is_refused(llm: AsyncLLM, budget: Any) -> None:
    reply = Tiny(llm, "thinking").chat(thinking_token_budget=budget)

    assert reply.status == 400
    assert reply.json()["error"]["param"] == "thinking_token_budget"
