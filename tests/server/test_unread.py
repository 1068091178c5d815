"""Settings that the model at hand does not have: each has its entry in ``warnings``."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import PLAIN, THINKING

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TALK = [{"role": "user", "content": "Hi"}]
UNREAD = "had no effect: the model's chat template does not read it"
NO_REASONING = "had no effect: the model does not reason"
EFFORT = PLAIN + "{{ reasoning_effort }}"
ON, OFF = {"type": "enabled", "budget_tokens": 5}, {"type": "disabled"}

# Template, route, fields, and the warnings.
CASES: list[tuple[str, str, dict[str, Any], list[str]]] = [
    (PLAIN, CHAT, {"reasoning_effort": "high"}, [f"'reasoning_effort' {UNREAD}"]),
    (PLAIN, RESPONSES, {"reasoning": {"effort": "high"}}, [f"'reasoning.effort' {UNREAD}"]),
    (
        *(PLAIN, MESSAGES, {"output_config": {"effort": "high"}}),
        [f"'output_config.effort' {UNREAD}"],
    ),
    (EFFORT, CHAT, {"reasoning_effort": "high"}, []),
    (PLAIN, CHAT, {"reasoning_effort": "none"}, []),
    (THINKING, CHAT, {"reasoning_effort": "none"}, []),
    (THINKING, CHAT, {"reasoning_effort": "low"}, [f"'reasoning_effort' {UNREAD}"]),
    (
        *(PLAIN, CHAT, {"chat_template_kwargs": {"opens": True, "xyz": 1, "m": 2}}),
        [f"'chat_template_kwargs.{name}' {UNREAD}" for name in ("opens", "xyz")],
    ),
    (THINKING, CHAT, {"chat_template_kwargs": {"opens": True, "enable_thinking": False}}, []),
    (PLAIN, CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, []),
    (
        *(PLAIN, CHAT, {"chat_template_kwargs": {"enable_thinking": True}}),
        [f"'chat_template_kwargs.enable_thinking' {UNREAD}"],
    ),
    (
        *(THINKING, CHAT, {"chat_template_kwargs": {"chat_template": "x"}}),
        ["'chat_template_kwargs.chat_template' had no effect: the model's own is used"],
    ),
    (PLAIN, CHAT, {"thinking_token_budget": 5}, [f"'thinking_token_budget' {NO_REASONING}"]),
    (THINKING, CHAT, {"thinking_token_budget": 5}, []),
    (PLAIN, RESPONSES, {"thinking_token_budget": 5}, [f"'thinking_token_budget' {NO_REASONING}"]),
    (
        *(PLAIN, MESSAGES, {"thinking": ON}),
        [f"'thinking' {UNREAD}", f"'thinking.budget_tokens' {NO_REASONING}"],
    ),
    (PLAIN, MESSAGES, {"thinking": OFF}, []),
    (THINKING, MESSAGES, {"thinking": ON}, []),
]


@pytest.mark.parametrize(("template", "path", "fields", "told"), CASES)
def test_setting_that_the_model_does_not_have_is_told_of(
    serve: Serve, template: str, path: str, fields: dict[str, Any], told: list[str]
) -> None:
    server = serve(["a</think>b"], template=template)
    talk: dict[str, Any] = {"input": "Hi"} if path == RESPONSES else {"messages": TALK}
    body = {**talk, ("max_output_tokens" if path == RESPONSES else "max_tokens"): 50, **fields}

    assert server.post(path, body).json().get("warnings", []) == told
    if path == CHAT:
        rendered = server.post(f"{CHAT}/render", body).json()
        streamed = [
            c["warnings"]
            for c in server.post(path, {**body, "stream": True}).data()
            if "warnings" in c
        ]
        assert rendered["warnings"] == told
        assert streamed == ([told] if told else [])
    if path == MESSAGES:
        del body["max_tokens"]
        counted = server.post(f"{MESSAGES}/count_tokens", body).json()
        assert counted.get("warnings", []) == told


def test_tokens_of_a_chat_tell_of_it_too(serve: Serve) -> None:
    body = {"messages": TALK, "reasoning_effort": "high", "chat_template_kwargs": {"xyz": 1}}

    reply = serve().post("/tokenize", body).json()

    assert reply["warnings"] == [
        f"'chat_template_kwargs.xyz' {UNREAD}",
        f"'reasoning_effort' {UNREAD}",
    ]
