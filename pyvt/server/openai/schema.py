"""Request models of OpenAI's API, with the fields that vLLM added.

Defaults are None everywhere: what the client leaves out is the model's own default.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pyvt.sampling_params import MAX_REPETITION, MIN_REPETITION
from pyvt.server.fields import RequestModel
from pyvt.server.unsupported import NOT_OF_CHAT, NOT_OF_COMPLETIONS, Unsupported


def _range(low: float | None, high: float | None = None) -> Any:
    """Return an optional field whose range is told; ``SamplingParams`` checks it."""
    told = {"minimum": low, "maximum": high}
    return Field(default=None, json_schema_extra={k: v for k, v in told.items() if v is not None})


class QueueFields(RequestModel):
    """When a request runs, for how long, and whose cached prefixes it may use."""

    priority: int | None = Field(default=None, ge=-(2**31), le=2**31)
    cache_salt: str | None = Field(
        default=None, description="shares cached prefixes only with requests of the same salt"
    )
    timeout_s: float | None = Field(
        default=None, description="seconds from arrival after which the request is ended"
    )


class SamplingFields(QueueFields):
    """What every route that generates takes."""

    temperature: float | None = _range(0)
    top_p: float | None = _range(0, 1)
    top_k: int | None = _range(-1)
    min_p: float | None = _range(0, 1)
    presence_penalty: float | None = _range(-2, 2)
    frequency_penalty: float | None = _range(-2, 2)
    repetition_penalty: float | None = _range(MIN_REPETITION, MAX_REPETITION)
    seed: int | None = _range(-(2**63), 2**64 - 1)
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = _range(0)
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    forced_token_ids: list[int] | None = Field(
        default=None, description="for tests; refused unless PYVT_TEST_HOOKS is set"
    )


class StreamOptions(RequestModel):
    """What a stream tells beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(SamplingFields):
    """What chats and completions share."""

    model: str | None = None
    max_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = _range(0, 20)


class Part(RequestModel):
    """A part of a message's content."""

    type: str
    text: str | None = None


class FunctionCall(RequestModel):
    """What an assistant called."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(RequestModel):
    """A call in an assistant's message."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(RequestModel):
    """A message of a conversation; further fields go to the chat template."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(RequestModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class NamedFunction(RequestModel):
    """The name of a function."""

    name: str


class NamedTool(RequestModel):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class TemplateFields(RequestModel):
    """What decides the text of a conversation."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatRequest(GenerationFields, TemplateFields):
    """POST /v1/chat/completions."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = NOT_OF_CHAT

    max_completion_tokens: int | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: int | None = Field(
        default=None, ge=0, description="most tokens of reasoning before the answer begins"
    )


class CompletionRequest(GenerationFields):
    """POST /v1/completions."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = NOT_OF_COMPLETIONS

    prompt: str | list[int] | list[str | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
