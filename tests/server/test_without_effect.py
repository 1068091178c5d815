"""Fields that a model has no use for are told in the answer, by the client's names."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import PLAIN, THINKING

EFFORT = PLAIN + "{{ reasoning_effort }}"
MESSAGES = [{"role": "user", "content": "Hi"}]
UNREAD = "had no effect: the chat template does not read it"
NO_REASONING = "had no effect: the chat template knows no reasoning"


@pytest.mark.parametrize(
    ("template", "fields", "warnings"),
    [
        (PLAIN, {"reasoning_effort": "high"}, [f"'reasoning_effort' {UNREAD}"]),
        (THINKING, {"reasoning_effort": "high"}, [f"'reasoning_effort' {UNREAD}"]),
        (EFFORT, {"reasoning_effort": "high"}, None),
        # It turns off what can be turned off, or what is not there.
        (THINKING, {"reasoning_effort": "none"}, None),
        (PLAIN, {"reasoning_effort": "none"}, None),
        (
            PLAIN,
            {"chat_template_kwargs": {"enable_thinking": True, "chat_template": "x"}},
            [
                f"'chat_template_kwargs.{name}' {UNREAD}"
                for name in ("enable_thinking", "chat_template")
            ],
        ),
        (PLAIN, {"chat_template_kwargs": {"enable_thinking": False}}, None),
        (THINKING, {"chat_template_kwargs": {"opens": True, "enable_thinking": True}}, None),
        (PLAIN, {"thinking_token_budget": 5}, [f"'thinking_token_budget' {NO_REASONING}"]),
        (THINKING, {"thinking_token_budget": 5}, None),
    ],
)
def test_chat_tells_fields_that_the_model_has_no_use_for(
    serve: Serve, template: str, fields: dict[str, Any], warnings: list[str] | None
) -> None:
    server = serve(["Yes."], template=template)

    body = server.chat(**fields).json()
    events = server.chat(stream=True, **fields).data()

    assert body.get("warnings") == warnings
    assert next((e["warnings"] for e in events if "warnings" in e), None) == warnings


@pytest.mark.parametrize(
    ("path", "fields", "warnings"),
    [
        (
            "/v1/responses",
            {"input": "Hi", "reasoning": {"effort": "high"}},
            [f"'reasoning.effort' {UNREAD}"],
        ),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 9,
                "thinking": {"type": "enabled", "budget_tokens": 5},
            },
            [f"'thinking' {UNREAD}", f"'thinking.budget_tokens' {NO_REASONING}"],
        ),
        (
            "/v1/messages",
            {"messages": MESSAGES, "max_tokens": 9, "thinking": {"type": "disabled"}},
            None,
        ),
    ],
)
def test_other_routes_tell_them_by_their_own_names(
    serve: Serve, path: str, fields: dict[str, Any], warnings: list[str] | None
) -> None:
    reply = serve(["Yes."]).post(path, fields)

    assert reply.status == 200, reply.text
    assert reply.json().get("warnings") == warnings


def test_variable_that_a_template_gives_a_default_is_read(serve: Serve) -> None:
    template = "{% set mood = mood | default('calm') %}{% if mood %}{{ mood }}{% endif %}" + PLAIN

    body = serve(["Yes."], template=template).chat(chat_template_kwargs={"mood": "x", "moo": 1})

    assert body.json()["warnings"] == [f"'chat_template_kwargs.moo' {UNREAD}"]
