"""Settings of a chat that the model at hand does not have: told of in ``warnings``, not refused.

Clients send them to every model. One that asks for what the model does anyway, such as no reasoning
of a model that never reasons, is not told of.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from pyvt.engine.input_processor import InputProcessor
from pyvt.server.answer.reasoning import ReasoningTags
from pyvt.server.fields import MAX_WARNINGS
from pyvt.server.openai.schema import ChatRequest, TemplateFields

_SWITCH = "enable_thinking"
_UNREAD = "the model's chat template does not read it"


def unread_settings(
    processor: InputProcessor,
    tags: ReasoningTags | None,
    request: TemplateFields,
    names: Mapping[str, str],
) -> tuple[str, ...]:
    """Return a text for each setting of a chat that had no effect.

    Args:
        processor: has the model's chat template.
        tags: of the model's reasoning, None where it does not reason.
        request: the chat.
        names: fields of a chat → fields of the client's request.
    """
    told = (
        f"{names.get(name, name)!r} had no effect: {reason}"
        for name, reason in _unread(processor, tags, request)
    )
    return tuple(islice(told, MAX_WARNINGS))


def _unread(
    processor: InputProcessor, tags: ReasoningTags | None, request: TemplateFields
) -> Iterator[tuple[str, str]]:
    template = processor.chat_template
    source = "" if template is None else "\n".join(template.sources.values())

    def reads(name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", source) is not None

    for name, value in (request.chat_template_kwargs or {}).items():
        is_met = name == _SWITCH and value is False and tags is None
        if name == "chat_template":
            yield f"chat_template_kwargs.{name}", "the model's own is used"
        elif not is_met and not reads(name):
            yield f"chat_template_kwargs.{name[:80]}", _UNREAD
    effort = request.reasoning_effort
    is_met = effort == "none" and (tags is None or reads(_SWITCH))
    if effort is not None and not is_met and not reads("reasoning_effort"):
        yield "reasoning_effort", _UNREAD
    budget = request.thinking_token_budget if isinstance(request, ChatRequest) else None
    if budget is not None and tags is None:
        yield "thinking_token_budget", "the model does not reason"
