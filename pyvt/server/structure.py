"""What a request says about the form of its text: a schema, a grammar, a call that must come.

1. ``response_format`` and ``structured_outputs`` are two ways to say it; only one may be used.
2. A forced call (``tool_choice`` required or a name) decides alone: there is no content.
3. With tools to choose from and a form of the content, the text is either calls or content.
4. Where the prompt has opened the reasoning, the form begins after its end.
"""

import json
from dataclasses import replace

from pyvt.engine.input_processor import InputProcessor
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.errors import WireException, request_error
from pyvt.server.openai.schema import ChatRequest, GenerationFields, NamedTool
from pyvt.server.tool_grammar import TEXT_ENDS, Marks, calls_grammar
from pyvt.structured.grammar import schema_options


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
    choice = getattr(request, "tool_choice", None)
    return {} if choice in (None, "auto", "none") else {"structured_outputs": "tools"}


def chat_form(
    chat: ChatRequest, form: AnswerFormat, processor: InputProcessor
) -> StructuredOutputsParams | None:
    """Return the form of a chat's text, tool calls included; None for free text.

    Raises:
        RequestError, WireException: the form cannot be had.
    """
    asked = text_form(chat)
    found = asked
    if form.dialect is not None:
        tools = [tool.function.model_dump(exclude_none=True) for tool in chat.tools or ()]
        choice = chat.tool_choice
        is_single = chat.parallel_tool_calls is False
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool["name"] == choice.function.name]
            is_single = True
        if choice not in (None, "auto") or asked is not None:
            is_forced = choice not in (None, "auto")
            rules = calls_grammar(form.dialect.name, tools, _marks(processor), is_single=is_single)
            found = _with_calls(rules, None if is_forced else asked)
            found = replace(found, text_ends=TEXT_ENDS.get(form.dialect.name, ()))
    if found is not None and form.tags is not None and form.start == "open":
        found = replace(found, begin_after=form.tags.closing)
    return found


def _marks(processor: InputProcessor) -> Marks:
    template, tokenizer = processor.chat_template, processor.tokenizer
    texts = () if template is None else template.sources.values()
    return Marks("\n".join(texts), frozenset(map(tokenizer.token_text, tokenizer.special_ids)))


def _with_calls(rules: str, content: StructuredOutputsParams | None) -> StructuredOutputsParams:
    """Return the form of calls, or of calls or content."""
    if content is None:
        return StructuredOutputsParams(grammar=f"start: calls\n{rules}")
    if content.json is None and not content.json_object:
        raise _refused("structured_outputs", "a JSON schema beside tools, or tool_choice='none'")
    schema = json.loads(content.json) if isinstance(content.json, str) else {"type": "object"}
    if isinstance(schema, dict):
        given_up = {} if content.strict else {"coerce_one_of": True, "lenient": True}
        schema = {**schema, "x-guidance": schema_options(content, given_up)}
    text = json.dumps(schema, ensure_ascii=False)
    return StructuredOutputsParams(
        grammar=f"start: calls | content\n{rules}\ncontent: %json {text}"
    )


def _refused(param: str, expected: str) -> WireException:
    return request_error(
        f"[request] {param}: expected {expected}", param=param, code="unsupported_value"
    )
