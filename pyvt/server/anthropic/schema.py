"""Request models of Anthropic's messages API."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pyvt.server.fields import RequestModel
from pyvt.server.openai.schema import SamplingFields
from pyvt.server.unsupported import NOT_OF_MESSAGES, Unsupported


class Block(RequestModel):
    """A block of a message; which fields it has depends on its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None


class InputMessage(RequestModel):
    """A message of the user or the assistant."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class InputTool(RequestModel):
    """A tool that the client carries out."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str | None = None


class ToolChoice(RequestModel):
    """Whether and which tools are called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """Whether the model reasons first."""

    type: str
    budget_tokens: int | None = Field(default=None, ge=0)


class OutputFormat(RequestModel):
    """What the text must be."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(RequestModel):
    """Settings of the answer."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountRequest(SamplingFields):
    """POST /v1/messages/count_tokens."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = NOT_OF_MESSAGES

    model: str | None = None
    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[Block] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
