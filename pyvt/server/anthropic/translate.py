"""A request of the messages API as a chat."""

import json
from collections.abc import Sequence
from typing import Any

from pyvt.server.anthropic.schema import Block, CountRequest, MessagesRequest
from pyvt.server.errors import WireException, renamed, request_error
from pyvt.server.fields import checked
from pyvt.server.openai.schema import ChatRequest, SamplingFields

# Fields of a chat → fields of a message.
_NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "tools.function.parameters": "tools.input_schema",
    "tools.function": "tools",
}
_NO_TEXTS = ("tool_result", "tool_use", "thinking", "redacted_thinking")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def names_of(asked: CountRequest) -> dict[str, str]:
    """Return the names of a chat's fields in a request."""
    form = "output_config.format" if asked.output_format is None else "output_format"
    schema = f"{form}.schema"
    switch = {} if asked.thinking is None else {"chat_template_kwargs.enable_thinking": "thinking"}
    return {
        **_NAMES,
        **switch,
        "response_format.json_schema.schema": schema,
        "response_format": form,
    }


def as_chat(asked: CountRequest) -> ChatRequest:
    """Return the chat that a request means.

    Raises:
        WireException: a block or a setting is of a kind that a model of text does not read.
    """
    messages: list[dict[str, Any]] = []
    if asked.system is not None:
        messages.append({"role": "system", "content": _text(asked.system, "system")})
    for i, message in enumerate(asked.messages):
        messages += _messages(message.role, message.content, f"messages[{i}].content")
    body: dict[str, Any] = {
        "messages": messages,
        "tools": _tools(asked),
        "chat_template_kwargs": _template_kwargs(asked),
        "thinking_token_budget": None if asked.thinking is None else asked.thinking.budget_tokens,
        "response_format": _format(asked),
        "structured_outputs": asked.structured_outputs,
        "reasoning_effort": None if asked.output_config is None else asked.output_config.effort,
        **_choice(asked),
        **{name: getattr(asked, name) for name in SamplingFields.model_fields},
    }
    if isinstance(asked, MessagesRequest):
        body |= {
            "max_tokens": asked.max_tokens,
            "stop": asked.stop_sequences,
            "stream": asked.stream,
        }
    # A last message of the assistant is the beginning of the answer.
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        body["continue_final_message"] = True
    try:
        return checked(ChatRequest, body)
    except WireException as error:
        raise renamed(error, names_of(asked)) from error


def _messages(role: str, content: str | Sequence[Block], place: str) -> list[dict[str, Any]]:
    """Return the messages that one message means: results of tools stand alone."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results = [
        {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "content": _text(block.content or "", f"{place}[{i}].content"),
        }
        for i, block in enumerate(content)
        if block.type == "tool_result"
    ]
    rest = [block for block in content if block.type != "tool_result"]
    if not rest:
        return results
    said: dict[str, Any] = {"role": role}
    texts = [
        _block_text(block, f"{place}[{i}]")
        for i, block in enumerate(content)
        if block.type not in _NO_TEXTS
    ]
    said["content"] = "\n".join(texts) if texts else None
    thoughts = [block.thinking or "" for block in rest if block.type == "thinking"]
    if thoughts:
        said["reasoning_content"] = "\n".join(thoughts)
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name or "", "arguments": json.dumps(block.input or {})},
        }
        for block in rest
        if block.type == "tool_use"
    ]
    if calls:
        said["tool_calls"] = calls
    return [*results, said]


def _text(content: str | Sequence[Block], place: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{place}[{i}]") for i, block in enumerate(content))


def _block_text(block: Block, place: str) -> str:
    if block.type != "text" or block.text is None:
        raise request_error(
            f"[request] {place}: expected a block of text, got {block.type[:40]!r}; the model "
            "reads text only",
            param=place,
            code="unsupported_value",
        )
    return block.text


def _tools(asked: CountRequest) -> list[dict[str, Any]] | None:
    if not asked.tools:
        return None
    tools = []
    for i, tool in enumerate(asked.tools):
        if tool.input_schema is None:
            param = f"tools[{i}]"
            raise request_error(
                f"[request] {param}: expected a tool with an input_schema, got {tool.name!r}; "
                "tools that the server carries out are not supported",
                param=param,
                code="unsupported_value",
            )
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        tools.append({"type": "function", "function": function})
    return tools


def _format(asked: CountRequest) -> dict[str, Any] | None:
    """Return the form of the text in the words of chats; it is kept as it is or refused."""
    form = None if asked.output_config is None else asked.output_config.format
    if form is not None and asked.output_format is not None:
        raise request_error(
            "[request] output_format: expected it or output_config.format, not both",
            param="output_format",
            code="invalid_value",
        )
    form = form or asked.output_format
    if form is None:
        return None
    spec = {"name": "answer", "schema": form.schema_, "strict": True}
    return {"type": "json_schema", "json_schema": spec}


def _choice(asked: CountRequest) -> dict[str, Any]:
    choice = asked.tool_choice
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use is not None:
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if choice.type == "tool" and choice.name:
        return {**fields, "tool_choice": {"type": "function", "function": {"name": choice.name}}}
    if choice.type not in _CHOICES:
        raise request_error(
            f"[request] tool_choice: expected auto, any, tool or none, got {choice.type[:40]!r}",
            param="tool_choice",
        )
    return {**fields, "tool_choice": _CHOICES[choice.type]}


def _template_kwargs(asked: CountRequest) -> dict[str, Any] | None:
    if asked.thinking is None:
        return asked.chat_template_kwargs
    is_on = asked.thinking.type != "disabled"
    return {"enable_thinking": is_on, **(asked.chat_template_kwargs or {})}
