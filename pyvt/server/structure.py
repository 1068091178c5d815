"""What a request says about the form of its text: a schema, a grammar, a call that must come.

1. ``response_format`` and ``structured_outputs`` are two ways to say it; only one may be used.
2. A forced call (``tool_choice`` required or a name) decides alone: there is no content.
3. With tools to choose from and a form of the content, the text is either calls or content.
4. With tools to choose from of which one is strict, the text is free until it begins a call.
5. Where the prompt has opened the reasoning, the form begins after its end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyvt.engine.input_processor import InputProcessor
from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.calls_in_text import Thought, text_with_calls
from pyvt.server.errors import WireException, request_error
from pyvt.server.openai.schema import ChatRequest, GenerationFields, NamedTool
from pyvt.server.refused_schemas import given_up, with_schema_to_blame
from pyvt.server.tool_grammar import TEXT_ENDS, Marks, calls_grammar
from pyvt.structured.grammar import loaded_schema, schema_options


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The form of a chat's text, None where it is free, and what of the tools it gives up."""

    structure: StructuredOutputsParams | None
    warnings: tuple[str, ...] = ()


def text_form(request: GenerationFields) -> StructuredOutputsParams | None:
    """Return the form that a request asks of its text, None for free text.

    Raises:
        RequestError: the form is unknown, or asked for twice.
    """
    return StructuredOutputsParams.of_request(request.response_format, request.structured_outputs)


def form_names(request: GenerationFields) -> dict[str, str]:
    """Return how the client calls what the engine calls structured outputs, and its schema."""
    if request.structured_outputs is not None:
        return {}
    if request.response_format is not None:
        is_object = request.response_format.get("type") == "json_object"
        schema = "response_format.schema" if is_object else "response_format.json_schema.schema"
        return {"structured_outputs.json": schema, "structured_outputs": "response_format"}
    is_of_tools = isinstance(request, ChatRequest) and (
        request.tool_choice not in (None, "auto", "none") or _is_strict(_functions(request))
    )
    return {"structured_outputs": "tools"} if is_of_tools else {}


def _functions(chat: ChatRequest) -> list[dict[str, Any]]:
    """Return the functions of a chat, each with its place in the request."""
    return [
        {**tool.function.model_dump(exclude_none=True), "place": f"tools[{i}].function.parameters"}
        for i, tool in enumerate(chat.tools or ())
    ]


def _callable(chat: ChatRequest) -> list[dict[str, Any]]:
    """Return the functions that may be called where a call is forced, or beside a form."""
    tools = _functions(chat)
    if isinstance(chat.tool_choice, NamedTool):
        return [tool for tool in tools if tool["name"] == chat.tool_choice.function.name]
    return tools


def _is_strict(tools: Sequence[Mapping[str, Any]]) -> bool:
    return any(tool.get("strict") for tool in tools)


def chat_form(chat: ChatRequest, form: AnswerFormat, processor: InputProcessor) -> ChatForm:
    """Return the form of a chat's text, tool calls included.

    Raises:
        RequestError, WireException: the form cannot be had.
    """
    asked = text_form(chat)
    if form.dialect is None:
        found = ChatForm(asked)
    elif form.is_call_alone or asked is not None:
        content = None if form.is_call_alone else asked
        found = _with_calls(chat, form.dialect.name, processor, content)
    else:
        # Its own rules have the reasoning in them.
        return _calls_in_text(chat, form, processor)
    if found.structure is not None and form.tags is not None and form.start == "open":
        found = replace(found, structure=replace(found.structure, begin_after=form.tags.closing))
    return found


def form_error(error: RequestError, chat: ChatRequest, form: AnswerFormat) -> Exception:
    """Return the error of a form that the engine refused, which names the schema to blame."""
    if error.param != "structured_outputs" or form.dialect is None:
        return error
    content = None if form.is_call_alone else text_form(chat)
    is_free = content is None and not form.is_call_alone
    tools = [tool for tool in _callable(chat) if tool.get("strict") or not is_free]
    return with_schema_to_blame(error, tools, content)


def _calls_in_text(chat: ChatRequest, form: AnswerFormat, processor: InputProcessor) -> ChatForm:
    """Return the form of free text whose calls are those of strict tools, if there are any."""
    tools = _functions(chat)
    if form.dialect is None or not _is_strict(tools):
        return ChatForm(None)
    grammar = text_with_calls(
        form.dialect.name,
        tools,
        _marks(processor),
        is_single=chat.parallel_tool_calls is False,
        thought=None if form.tags is None else Thought(form.tags, form.start),
    )
    ends = TEXT_ENDS.get(form.dialect.name, ())
    return ChatForm(StructuredOutputsParams(grammar=grammar, free_text=True, text_ends=ends))


def _marks(processor: InputProcessor) -> Marks:
    template, tokenizer = processor.chat_template, processor.tokenizer
    texts = () if template is None else template.sources.values()
    return Marks("\n".join(texts), frozenset(map(tokenizer.token_text, tokenizer.special_ids)))


def _with_calls(
    chat: ChatRequest,
    dialect: str,
    processor: InputProcessor,
    content: StructuredOutputsParams | None,
) -> ChatForm:
    """Return the form of calls, or of calls or content."""
    is_single = chat.parallel_tool_calls is False or isinstance(chat.tool_choice, NamedTool)
    rules = calls_grammar(dialect, _callable(chat), _marks(processor), is_single=is_single)
    grammar = f"start: calls\n{rules.text}"
    if content is not None:
        grammar = f"start: calls | content\n{rules.text}\ncontent: {_content_rule(content)}"
    ends = TEXT_ENDS.get(dialect, ())
    return ChatForm(StructuredOutputsParams(grammar=grammar, text_ends=ends), rules.warnings)


def _content_rule(content: StructuredOutputsParams) -> str:
    if content.json is None and not content.json_object:
        raise _refused("structured_outputs", "a JSON schema beside tools, or tool_choice='none'")
    schema = loaded_schema(content)
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": schema_options(content, given_up(content))}
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def _refused(param: str, expected: str) -> WireException:
    return request_error(
        f"[request] {param}: expected {expected}", param=param, code="unsupported_value"
    )
