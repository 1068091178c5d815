"""From a chat's request to a prompt, and to how its answer is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from pyvt.engine.input_processor import InputProcessor
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.answer.reasoning import REASONING_TAGS, ReasoningTags, Start, start_state
from pyvt.server.errors import request_error
from pyvt.server.openai.schema import ChatRequest, Message, NamedTool, Part, TemplateFields, Tool
from pyvt.server.plain_json import loaded
from pyvt.server.state import Speech
from pyvt.server.tool_parsers import ToolDialect, schemas_of
from pyvt.tokenizer.base import RenderedPrompt

# Templates of models without the role know the same thing by this name.
_DEVELOPER, _SYSTEM = "developer", "system"
# Stands behind a content that shall be continued: a character that no template writes.
_END = "\uf8ff"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rendered chat, how its answer is read, and whether it may call tools."""

    prompt: RenderedPrompt
    form: AnswerFormat


def render_conversation(
    processor: InputProcessor, request: TemplateFields, dialect: ToolDialect | None
) -> RenderedPrompt:
    """Return the prompt of a conversation with a model of a form of tool calls.

    Raises:
        RequestError: the messages, the tools or the template's own variables are refused.
    """
    if request.chat_template is not None:
        raise request_error(
            "[request] chat_template: expected none, the model's own is used",
            param="chat_template",
            code="unsupported_value",
        )
    template = processor.chat_template
    knows_developer = template is not None and any(
        _DEVELOPER in source for source in template.sources.values()
    )
    messages = [
        _with_short_ids(_plain(message, f"messages[{i}]", knows_developer), dialect)
        for i, message in enumerate(request.messages)
    ]
    is_continued = bool(request.continue_final_message)
    if is_continued and request.add_generation_prompt:
        raise request_error(
            "[request] continue_final_message: expected it without add_generation_prompt",
            param="continue_final_message",
        )
    if is_continued and messages:
        messages[-1] = _with_end(messages[-1])
    is_open = request.add_generation_prompt is not False and not is_continued
    variables = dict(request.chat_template_kwargs or {})
    # A request cannot bring its own template in by another door.
    variables.pop("chat_template", None)
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
        if request.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if request.documents is not None:
        raise request_error(
            "[request] documents: expected none, they are not supported",
            param="documents",
            code="unsupported_parameter",
        )
    rendered = processor.render(
        messages,
        tools=_tools(request),
        add_generation_prompt=is_open,
        chat_template_kwargs=variables,
    )
    return _cut_at_end(rendered) if is_continued else rendered


def conversation(processor: InputProcessor, speech: Speech, request: ChatRequest) -> Conversation:
    """Return the prompt of a chat and how its answer is read; raises as rendering does."""
    prompt = render_conversation(processor, request, speech.dialect)
    is_calling = bool(request.tools) and request.tool_choice != "none"
    dialect = speech.dialect if is_calling else None
    if is_calling and dialect is None:
        raise request_error(
            "[request] tools: expected none, the model's chat template speaks no form of tool "
            "calls that is known; choose one with --tool-call-parser",
            param="tools",
            code="unsupported_value",
        )
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    start = _start(prompt, speech.tags, request)
    stop = request.stop or ()
    form = AnswerFormat(
        tags=speech.tags if start is not None else None,
        start=start or "closed",
        dialect=dialect,
        tools=schemas_of(tools),
        stop=((stop,) if isinstance(stop, str) else stop) if start is not None else (),
        is_stop_included=bool(request.include_stop_str_in_output),
        is_single=dialect is not None and request.parallel_tool_calls is False,
        is_call_alone=dialect is not None and request.tool_choice not in (None, "auto"),
    )
    return Conversation(prompt, form)


def _start(
    prompt: RenderedPrompt, tags: ReasoningTags | None, request: ChatRequest
) -> Start | None:
    """Return where the answer's text begins; None where no reasoning can be in it."""
    if tags is None:
        return None
    if not request.continue_final_message:
        return start_state(prompt.guarded, tags)
    written = _plain(request.messages[-1], "messages", knows_developer=True).get("content", "")
    is_open = tags.opening in written and tags.closing not in written
    return "open" if is_open else None


def _check_names(tools: Sequence[Tool]) -> None:
    """Refuse a second tool of one name: nobody could tell which of them is called."""
    first: dict[str, int] = {}
    for i, tool in enumerate(tools):
        name = tool.function.name
        if first.setdefault(name, i) != i:
            param = f"tools[{i}].function.name"
            raise request_error(
                f"[request] {param}: expected a name of its own, got {name[:80]!r} as tool "
                f"{first[name]} has it; rename or leave out one of them",
                param=param,
                code="invalid_value",
            )


def _tools(request: TemplateFields) -> list[dict[str, Any]] | None:
    _check_names(request.tools or ())
    chosen = getattr(request, "tool_choice", None)
    if not request.tools and (chosen == "required" or isinstance(chosen, NamedTool)):
        raise request_error(
            "[request] tool_choice: expected 'auto' or 'none' without tools; send the tools of "
            "which one must be called",
            param="tool_choice",
            code="invalid_value",
        )
    if not request.tools or chosen == "none":
        return None
    if isinstance(chosen, NamedTool):
        names = [tool.function.name for tool in request.tools]
        if chosen.function.name not in names:
            raise request_error(
                f"[request] tool_choice: expected one of the tools, got {chosen.function.name!r}",
                param="tool_choice",
                code="invalid_value",
            )
    return [_plain_tool(tool) for tool in request.tools]


def _plain_tool(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(exclude_none=True)


def _plain(message: Message, place: str, knows_developer: bool) -> dict[str, Any]:
    """Return a message as templates want it: text contents, arguments as objects."""
    plain = message.model_dump(exclude_none=True)
    if message.role == _DEVELOPER and not knows_developer:
        plain["role"] = _SYSTEM
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        plain["content"] = ""  # templates ask for it
    if isinstance(message.content, list):
        plain["content"] = "\n".join(
            _part_text(part, f"{place}.content[{i}]") for i, part in enumerate(message.content)
        )
    for call in plain.get("tool_calls", ()):
        call["function"]["arguments"] = _arguments(call["function"].get("arguments"))
    return plain


def _with_short_ids(message: dict[str, Any], dialect: ToolDialect | None) -> dict[str, Any]:
    """Return a message with ids of calls that its template takes; equal ids stay equal."""
    if dialect is not None and dialect.num_id_chars:
        for holder, name in (
            *((call, "id") for call in message.get("tool_calls", ())),
            (message, "tool_call_id"),
        ):
            given = holder.get(name)
            is_short = given and len(given) == dialect.num_id_chars and given.isalnum()
            if given and not (is_short and given.isascii()):
                holder[name] = blake3(given.encode()).hexdigest()[: dialect.num_id_chars]
    return message


def _part_text(part: Part, place: str) -> str:
    if part.type not in ("text", "input_text", "output_text") or part.text is None:
        raise request_error(
            f"[request] {place}: expected a part of type 'text' with a text, got "
            f"{part.type[:40]!r}; the model reads text only",
            param=place,
            code="unsupported_value",
        )
    return part.text


def _arguments(given: Any) -> Any:
    """Return arguments as an object where they are the text of one."""
    if given is None:
        return {}
    if not isinstance(given, str):
        return given
    try:
        value = loaded(given or "{}")
    except ValueError:
        return given
    return value if isinstance(value, dict) else given


def _with_end(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with a mark behind its content, which may be any letter of the template."""
    content = message.get("content")
    if message.get("role") != "assistant" or not content:
        raise request_error(
            "[request] continue_final_message: expected a last message of the assistant with "
            "content",
            param="continue_final_message",
        )
    # Reasoning at the start of a content is known by a closing tag that ends its line.
    closings = tuple(tags.closing for tags in REASONING_TAGS.values())
    line_end = "\n" if content.endswith(closings) else ""
    return {**message, "content": f"{content}{line_end}{_END}"}


def _cut_at_end(rendered: RenderedPrompt) -> RenderedPrompt:
    """Return a prompt that ends where the content of its last message ends."""
    end = rendered.text.rfind(_END)
    if end < 0:
        raise request_error(
            "[request] continue_final_message: expected a template that writes the last message "
            "as it is",
            param="continue_final_message",
        )
    return RenderedPrompt(rendered.text[:end], rendered.guarded[:end], rendered.stand_ins)
