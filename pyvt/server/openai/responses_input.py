"""A request of the responses API as a chat."""

from collections.abc import Sequence
from typing import Any

from pyvt.server.errors import WireException, renamed, request_error
from pyvt.server.fields import checked
from pyvt.server.openai.responses_schema import (
    LOGPROBS,
    FunctionChoice,
    InputItem,
    InputPart,
    ResponsesRequest,
    ResponseTool,
)
from pyvt.server.openai.schema import ChatRequest, SamplingFields

# Fields of a chat → fields of a response.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.schema": "text.format.schema",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tools.function": "tools",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def as_chat(asked: ResponsesRequest) -> ChatRequest:
    """Return the chat that a request means.

    Raises:
        WireException: it needs what a server without a memory does not have, or more than text.
    """
    _check_stateless(asked)
    messages: list[dict[str, Any]] = []
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        messages.append({"role": "user", "content": asked.input})
    else:
        messages += _messages(asked.input)
    choice: Any = asked.tool_choice
    if isinstance(choice, FunctionChoice):
        choice = {"type": "function", "function": {"name": choice.name}}
    body: dict[str, Any] = {
        "messages": messages,
        "tools": [
            _function(tool, f"tools[{i}]")
            for i, tool in enumerate(asked.tools or ())
            if tool.is_function
        ]
        or None,
        "tool_choice": choice,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "max_tokens": asked.max_output_tokens,
        "stop": asked.stop,
        "stream": asked.stream,
        "chat_template_kwargs": asked.chat_template_kwargs,
        "thinking_token_budget": asked.thinking_token_budget,
        "response_format": _format(asked),
        "structured_outputs": asked.structured_outputs,
        "logprobs": LOGPROBS in (asked.include or ()) or asked.top_logprobs is not None or None,
        "top_logprobs": asked.top_logprobs,
        "reasoning_effort": None if asked.reasoning is None else asked.reasoning.effort,
        **{name: getattr(asked, name) for name in SamplingFields.model_fields},
    }
    try:
        return checked(ChatRequest, body)
    except WireException as error:
        raise renamed(error, NAMES) from error


def _format(asked: ResponsesRequest) -> dict[str, Any] | None:
    """Return the form of the text in the words of chats."""
    if asked.text is None or asked.text.format is None:
        return None
    form = asked.text.format.model_dump(exclude_none=True, by_alias=True)
    if form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}


def _check_stateless(asked: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation"):
        if getattr(asked, name) is not None:
            raise _unsupported(name, "none; send the whole conversation as input")
    if asked.background:
        raise _unsupported("background", "false; no response is kept")
    if asked.truncation not in (None, "disabled"):
        raise _unsupported("truncation", "'disabled'; a prompt is never truncated")


def _unsupported(param: str, expected: str) -> WireException:
    return request_error(
        f"[request] {param}: expected {expected}", param=param, code="unsupported_parameter"
    )


def _messages(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return messages; reasoning, text and calls of one turn of the assistant become one."""
    messages: list[dict[str, Any]] = []

    def assistant(*taken: str) -> dict[str, Any]:
        is_new = not messages or messages[-1]["role"] != "assistant"
        if is_new or any(messages[-1].get(name) is not None for name in taken):
            messages.append({"role": "assistant", "content": None})
        return messages[-1]

    for i, item in enumerate(items):
        place = f"input[{i}].content"
        match item.type or "message":
            case "message" if item.role == "assistant":
                assistant("content", "tool_calls")["content"] = _text(item.content, place)
            case "message":
                role = item.role or "user"
                messages.append({"role": role, "content": _text(item.content, place)})
            case "reasoning":
                text = _text(item.content, place)
                assistant("content", "tool_calls")["reasoning_content"] = text
            case "function_call":
                function = {"name": item.name or "", "arguments": item.arguments or "{}"}
                call = {"id": item.call_id, "type": "function", "function": function}
                assistant().setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = {"role": "tool", "content": _text(item.output, f"input[{i}].output")}
                messages.append({**output, "tool_call_id": item.call_id})
            case other:
                param = f"input[{i}].type"
                raise request_error(
                    f"[request] {param}: expected messages, calls and their outputs, got "
                    f"{other[:40]!r}",
                    param=param,
                    code="unsupported_value",
                )
    return messages


def _text(content: str | Sequence[InputPart] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for i, part in enumerate(content):
        if part.type not in _TEXT_PARTS or part.text is None:
            param = f"{place}[{i}]"
            raise request_error(
                f"[request] {param}: expected a part of text, got {part.type[:40]!r}; the model "
                "reads text only",
                param=param,
                code="unsupported_value",
            )
    return "\n".join(part.text or "" for part in content)


def _function(tool: ResponseTool, place: str) -> dict[str, Any]:
    if not tool.name:
        raise request_error(
            f"[request] {place}.name: expected the name of the function, got none",
            param=f"{place}.name",
            code="invalid_value",
        )
    function = tool.model_dump(include={"name", "description", "parameters", "strict"})
    return {"type": "function", "function": function}
