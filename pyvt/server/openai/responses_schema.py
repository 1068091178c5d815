"""Request models of OpenAI's responses API."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pyvt.sampling_params import MAX_LOGPROBS
from pyvt.server.fields import MAX_WARNINGS, RequestModel
from pyvt.server.openai.schema import SamplingFields
from pyvt.server.unsupported import NOT_OF_RESPONSES, Unsupported

LOGPROBS = "message.output_text.logprobs"
# Clients that keep no state ask for the second one always; reasoning is in the answer as it is.
_INCLUDED = frozenset({LOGPROBS, "reasoning.encrypted_content"})


class InputPart(RequestModel):
    """A part of an item's content."""

    type: str
    text: str | None = None


class InputItem(RequestModel):
    """A message, a call, the result of a call, or reasoning; a message may leave its type out."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class ResponseTool(RequestModel):
    """A function; tools that OpenAI's own server runs are not offered to the model."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_function(self) -> bool:
        """Whether the client runs it."""
        return self.type == "function"


class FunctionChoice(RequestModel):
    """The function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(RequestModel):
    """What the text must be."""

    type: str
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextSettings(RequestModel):
    """Settings of the text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(RequestModel):
    """Settings of reasoning."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields):
    """POST /v1/responses."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = NOT_OF_RESPONSES

    model: str | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    structured_outputs: dict[str, Any] | None = None
    reasoning: ReasoningSettings | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    stream_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking_token_budget: int | None = Field(default=None, ge=0)

    def warnings(self) -> list[str]:
        """Return a text for each field that had no effect, those included that OpenAI knows."""
        told = super().warnings()
        kept = [name[:80] for name in self.include or () if name not in _INCLUDED]
        told += [f"'include' has no {name!r} to give" for name in kept[:MAX_WARNINGS]]
        kinds = [(i, t.type[:40]) for i, t in enumerate(self.tools or ()) if not t.is_function]
        told += [
            f"'tools[{i}]' was not offered to the model: no tool of type {kind!r} is run here"
            for i, kind in kinds[:MAX_WARNINGS]
        ]
        if self.text is not None and self.text.verbosity is not None:
            told.append("'text.verbosity' had no effect: the model has no such setting")
        return told
