"""Chats to text, with the templates that come with a model.

A template sees the messages in plain types, its own special tokens as they are, and every string of
the caller guarded (``control_guard``): nothing that a caller writes becomes a control token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jinja2
from jinja2 import nodes

from pyvt.errors import RequestError
from pyvt.tokenizer.base import RenderedPrompt, Tokenizer
from pyvt.tokenizer.control_guard import KNOWN_ROLES, ControlGuard, StandIns, all_strings
from pyvt.tokenizer.history import (
    Message,
    plain_data,
    plain_messages,
    split_reasoning,
    with_empty_content,
    with_split_reasoning,
)
from pyvt.tokenizer.sandbox import ChatEnvironment, render
from pyvt.tokenizer.template_limits import Limits, Rendering

DEFAULT, TOOL_USE = "default", "tool_use"
# Templates of today's models have up to 20,000; compiling takes 40 µs for each.
_MAX_TEMPLATE_CHARS = 100_000
_PREVIEW: tuple[Message, ...] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
)

# What a template can raise by what it says; anything else is a fault of pyvt.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)

# What a template raises that takes a content for granted.
_ABSENCE_FAULTS = (jinja2.UndefinedError, TypeError)


@dataclass(frozen=True, slots=True)
class _Compiled:
    code: jinja2.Template
    guard: ControlGuard
    source: str
    reads_reasoning: bool  # in its own field, and searches contents without it
    searches_reasoning: bool


class ChatTemplate:
    """The templates of one model. Safe to call from several threads.

    Args:
        templates: name → source; "default" and, for requests with tools, "tool_use".
        specials: ``bos_token`` and the like, as variables of the template.
        control_texts: texts of the tokenizer's control tokens (``Tokenizer.control_texts``).
        limits: bounds of one rendering.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        specials: Mapping[str, str],
        *,
        control_texts: Iterable[str],
        limits: Limits | None = None,
    ) -> None:
        self._templates = dict(templates)
        self._specials = dict(specials)
        self._control_texts = tuple(control_texts)
        self._limits = limits or Limits()
        self._environment = ChatEnvironment()
        self._compiled: dict[str, _Compiled] = {}
        self._lock = Lock()

    @classmethod
    def for_tokenizer(cls, templates: Mapping[str, str], tokenizer: Tokenizer) -> "ChatTemplate":
        """Return the templates with a tokenizer's special and control tokens."""
        return cls(templates, tokenizer.specials, control_texts=tokenizer.control_texts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the templates."""
        return tuple(self._templates)

    @property
    def sources(self) -> Mapping[str, str]:
        """The templates' own texts by name."""
        return self._templates

    def select(self, tools: Any = None) -> str:
        """Return the name of the template for a request; RequestError where there is none."""
        if tools and TOOL_USE in self._templates:
            return TOOL_USE
        if DEFAULT in self._templates:
            return DEFAULT
        if len(self._templates) == 1:
            return next(iter(self._templates))
        got = ", ".join(self._templates) or "none"
        raise RequestError(
            f"[chat] template: expected one named {DEFAULT!r}, got {got}; "
            "send a prompt instead of messages",
            param="messages",
            code="no_chat_template",
        )

    def render(
        self,
        /,
        messages: Any,
        *,
        tools: Any = None,
        documents: Any = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> RenderedPrompt:
        """Render a chat.

        Clients send tool calls with no content. Where the template fails for that alone, it is
        given an empty one.

        Args:
            messages: objects with ``role`` and what the template wants; not changed.
            tools: JSON schemas of tools.
            documents: documents of a template that knows them.
            add_generation_prompt: whether the text ends where the assistant begins.
            kwargs: further variables of the template, such as ``enable_thinking``.

        Raises:
            RequestError: messages of a wrong form, or whatever the template says is wrong.
        """
        for name in kwargs.keys() & self._specials.keys():
            raise RequestError(
                f"[chat] chat_template_kwargs: {name!r} is set by pyvt",
                param="chat_template_kwargs",
            )
        compiled = self._compile(self.select(tools))
        plain = plain_messages(messages)
        if compiled.reads_reasoning:
            plain = [with_split_reasoning(message) for message in plain]
        data = {
            "tools": plain_data(tools, "tools"),
            "documents": plain_data(documents, "documents"),
            **plain_data(kwargs, "chat_template_kwargs"),
        }
        texts = (compiled.source, *all_strings(plain), *all_strings(data))
        stand_ins = StandIns(compiled.guard, texts)
        variables = {
            **self._specials,
            **{name: stand_ins.guarded_data(value) for name, value in data.items()},
            "add_generation_prompt": add_generation_prompt,
        }
        rendering = Rendering(
            self._limits.for_input(sum(map(len, texts))),
            stand_ins.guarded,
            stand_ins.restored,
            stand_ins.originals,
        )

        def run(chat: list[Message]) -> str:
            guarded = [_guarded_message(message, compiled, stand_ins) for message in chat]
            return self._run(compiled, rendering, {**variables, "messages": guarded})

        try:
            guarded = run(plain)
        except RequestError as error:
            filled = [with_empty_content(message) for message in plain]
            if filled == plain or not isinstance(error.__cause__, _ABSENCE_FAULTS):
                raise
            guarded = run(filled)
        return RenderedPrompt.from_guarded(guarded, stand_ins.originals)

    def preview(self) -> str:
        """Return a fixed chat of two messages, rendered; for people who look at a model."""
        return self.render(_PREVIEW, add_generation_prompt=False).text

    def _run(self, compiled: _Compiled, rendering: Rendering, variables: dict[str, Any]) -> str:
        try:
            return render(self._environment, compiled.code, rendering, variables)
        except RequestError:
            raise
        except _TEMPLATE_FAULTS as error:
            raise _template_error(error) from error

    def _compile(self, name: str) -> _Compiled:
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self._compile_source(self._templates[name])
            return self._compiled[name]

    def _compile_source(self, source: str) -> _Compiled:
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise RequestError(
                f"[chat] template: expected at most {_MAX_TEMPLATE_CHARS} characters, "
                f"got {len(source)}",
                code="chat_template",
            )
        try:
            code = self._environment.from_string(source)
            tree = self._environment.parse(source)
        except _TEMPLATE_FAULTS as error:
            raise _template_error(error) from error
        words, probes = _words(tree), _probes(tree)
        searches = any("</think>" in probe for probe in probes)
        return _Compiled(
            code=code,
            guard=ControlGuard(self._control_texts, words, probes),
            source=source,
            reads_reasoning=searches and "reasoning_content" in words,
            searches_reasoning=searches,
        )


def _template_error(error: BaseException) -> RequestError:
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    what = str(error) or type(error).__name__
    return RequestError(
        f"[chat] template: {what[:2000]}{where}", param="messages", code="chat_template"
    )


def _words(tree: nodes.Template) -> frozenset[str]:
    """Return every string and attribute name that a template mentions."""
    constants = (node.value for node in tree.find_all(nodes.Const))
    attributes = (node.attr for node in tree.find_all(nodes.Getattr))
    return frozenset(word for word in (*constants, *attributes) if isinstance(word, str))


def _probes(tree: nodes.Template) -> frozenset[str]:
    """Return the literals that a template compares, or gives to a method, filter or test."""
    probes = set()
    for node in tree.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)):
        places: list[nodes.Node] = [node]
        if isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
            places = [*node.args, *node.kwargs]
        for place in places:
            found = [place] if isinstance(place, nodes.Const) else place.find_all(nodes.Const)
            probes |= {const.value for const in found if isinstance(const.value, str)}
    return frozenset(probes)


def _guarded_message(message: Message, compiled: _Compiled, stand_ins: StandIns) -> Message:
    """Guard a message, but for a known role and reasoning tags that the template looks for."""
    guarded: Message = stand_ins.guarded_data(message)
    if message["role"] in KNOWN_ROLES:
        guarded["role"] = message["role"]
    content = message.get("content")
    if (
        message["role"] == "assistant"
        and isinstance(content, str)
        and compiled.searches_reasoning
        and not compiled.reads_reasoning
        and split_reasoning(content) is not None
    ):
        before, close, answer = content.partition("</think>")
        space, opened, reasoning = before.rpartition("<think>")
        parts = (stand_ins.guarded(space), opened, stand_ins.guarded(reasoning), close)
        guarded["content"] = "".join(parts) + stand_ins.guarded(answer)
    return guarded
