"""Fields that clients of OpenAI, vLLM and Anthropic know and that a route does not have.

To leave one without an effect would give another answer than was asked for, so it is refused. Its
default, which asks for nothing, is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyvt.server.errors import request_error


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One field.

    Attributes:
        remedy: what to do instead.
        harmless: values that ask for nothing.
    """

    remedy: str
    harmless: tuple[Any, ...] = ()


_TEXT_ALONE = "leave it out; the model reads and writes text only"
UNSUPPORTED: Mapping[str, Unsupported] = {
    # OpenAI's
    "functions": Unsupported("send tools", ([],)),
    "function_call": Unsupported("send tool_choice", ("none", "auto")),
    "modalities": Unsupported(_TEXT_ALONE, (["text"], [])),
    "audio": Unsupported(_TEXT_ALONE),
    "web_search_options": Unsupported("leave it out; the server looks nothing up"),
    # vLLM's
    "use_beam_search": Unsupported("leave it out; there is no beam search", (False,)),
    "length_penalty": Unsupported("leave it out; there is no beam search", (1,)),
    "early_stopping": Unsupported("leave it out; there is no beam search", (False,)),
    "truncate_prompt_tokens": Unsupported("shorten the prompt; it is never truncated"),
    "truncation_side": Unsupported("shorten the prompt; it is never truncated"),
    "prompt_embeds": Unsupported("send prompt as a text or token ids"),
    "mm_processor_kwargs": Unsupported(_TEXT_ALONE, ({},)),
    "media_io_kwargs": Unsupported(_TEXT_ALONE, ({},)),
    "logits_processors": Unsupported("send logit_bias, allowed_token_ids or bad_words", ([],)),
    "kv_transfer_params": Unsupported("leave it out; KV stays in this server", ({},)),
    "vllm_xargs": Unsupported("leave it out; there are no plugins", ({},)),
    "repetition_detection": Unsupported("send repetition_penalty"),
    "request_id": Unsupported("send it as the header x-request-id"),
    "return_tokens_as_token_ids": Unsupported("send return_token_ids", (False,)),
    "spaces_between_special_tokens": Unsupported("leave it out", (True,)),
    "embed_dtype": Unsupported("leave it out; vectors are f32", ("float32",)),
    "endianness": Unsupported("leave it out; vectors are little-endian", ("native", "little")),
    # Anthropic's
    "mcp_servers": Unsupported("leave it out; tools are carried out by the client", ([],)),
    "container": Unsupported("leave it out; tools are carried out by the client"),
}


def called(name: str, harmless: tuple[Any, ...] = ()) -> Unsupported:
    """Return the row of a field that a route has by another name."""
    return Unsupported(f"on this route it is called {name}", harmless)


_ONE_ANSWER = Unsupported("leave it out, or ask POST /v1/chat/completions", (1,))
_NO_CHAT = "leave it out, or ask POST /v1/chat/completions"
# Fields of other routes, which clients of several of them send.
NOT_OF_CHAT: Mapping[str, Unsupported] = {
    "add_special_tokens": Unsupported("leave it out; the template has them", (False,)),
    "echo": Unsupported("leave it out, or ask POST /v1/completions", (False,)),
    "suffix": Unsupported("leave it out; text is only added at the end"),
    "prompt": Unsupported("send messages"),
    "input": called("messages"),
    "instructions": Unsupported("send a message of the role system"),
    "system": Unsupported("send a message of the role system"),
    "max_output_tokens": called("max_tokens"),
    "stop_sequences": called("stop"),
    "thinking": Unsupported(
        "send chat_template_kwargs with enable_thinking, or thinking_token_budget"
    ),
    "reasoning": called("reasoning_effort"),
    "text": called("response_format"),
    "output_config": called("response_format, with the effort as reasoning_effort"),
    "output_format": called("response_format"),
    "include": Unsupported("leave it out; log probabilities are told with logprobs", ([],)),
    "previous_response_id": Unsupported("send the whole conversation as messages"),
    "conversation": Unsupported("send the whole conversation as messages"),
    "background": Unsupported("leave it out; no answer is kept", (False,)),
    "truncation": Unsupported("leave it out; a prompt is never truncated", ("disabled",)),
}
NOT_OF_COMPLETIONS: Mapping[str, Unsupported] = {
    **{name: row for name, row in NOT_OF_CHAT.items() if name not in ("echo", "suffix", "prompt")},
    "add_special_tokens": Unsupported("send token ids, which are taken as they are", (True,)),
    "messages": Unsupported("send prompt, or ask POST /v1/chat/completions"),
    "input": called("prompt"),
    "instructions": Unsupported("write it into prompt, or ask POST /v1/chat/completions"),
    "system": Unsupported("write it into prompt, or ask POST /v1/chat/completions"),
    "previous_response_id": Unsupported("send the whole text as prompt"),
    "conversation": Unsupported("send the whole text as prompt"),
    "output_config": called("response_format"),
    "max_completion_tokens": called("max_tokens"),
    "top_logprobs": called("logprobs"),
    "tools": Unsupported(_NO_CHAT, ([],)),
    "tool_choice": Unsupported(_NO_CHAT, ("none", "auto")),
    "parallel_tool_calls": Unsupported(_NO_CHAT, (True, False)),
    "include_reasoning": Unsupported(_NO_CHAT, (True,)),
    "add_generation_prompt": Unsupported(_NO_CHAT, (False,)),
    "continue_final_message": Unsupported(_NO_CHAT, (False,)),
    **{
        name: Unsupported(_NO_CHAT)
        for name in (
            *("thinking", "reasoning", "reasoning_effort", "thinking_token_budget"),
            *("chat_template", "chat_template_kwargs", "documents"),
        )
    },
}
# What a route has that answers a conversation once, in an API of its own.
_NOT_OF_ONE_ANSWER: Mapping[str, Unsupported] = {
    "n": _ONE_ANSWER,
    "best_of": _ONE_ANSWER,
    "prompt_logprobs": Unsupported("leave it out, or ask POST /v1/completions"),
    "return_token_ids": Unsupported(_NO_CHAT, (False,)),
    "include_reasoning": Unsupported("leave it out; reasoning is told apart", (True,)),
    "chat_template": Unsupported("leave it out; the model's own is used"),
    "documents": Unsupported("leave it out; send them as texts"),
    "add_generation_prompt": Unsupported("leave it out; an answer follows", (True,)),
    "add_special_tokens": NOT_OF_CHAT["add_special_tokens"],
    "echo": NOT_OF_CHAT["echo"],
    "suffix": NOT_OF_CHAT["suffix"],
}
NOT_OF_RESPONSES: Mapping[str, Unsupported] = {
    **_NOT_OF_ONE_ANSWER,
    "prompt": Unsupported("send input and instructions; no templates are kept"),
    "context_management": Unsupported("leave it out; a prompt is never shortened", ([],)),
    "messages": Unsupported("send input"),
    "system": called("instructions"),
    "max_tokens": called("max_output_tokens"),
    "max_completion_tokens": called("max_output_tokens"),
    "stop_sequences": called("stop"),
    "response_format": called("text.format", ({"type": "text"},)),
    "output_config": called("text.format and reasoning.effort"),
    "output_format": called("text.format"),
    "reasoning_effort": called("reasoning.effort"),
    "thinking": NOT_OF_CHAT["thinking"],
    "logprobs": Unsupported("send include with 'message.output_text.logprobs'", (False,)),
    "continue_final_message": Unsupported(_NO_CHAT, (False,)),
}
NOT_OF_MESSAGES: Mapping[str, Unsupported] = {
    **_NOT_OF_ONE_ANSWER,
    "prompt": Unsupported("send messages"),
    "input": called("messages"),
    "instructions": called("system"),
    "max_completion_tokens": called("max_tokens"),
    "max_output_tokens": called("max_tokens"),
    "stop": called("stop_sequences"),
    "response_format": called("output_config.format", ({"type": "text"},)),
    "text": called("output_config.format"),
    "reasoning": called("output_config.effort"),
    "reasoning_effort": called("output_config.effort"),
    "thinking_token_budget": called("thinking.budget_tokens"),
    "parallel_tool_calls": called("tool_choice.disable_parallel_tool_use", (True,)),
    "logprobs": Unsupported(_NO_CHAT, (False,)),
    "top_logprobs": Unsupported(_NO_CHAT),
    "continue_final_message": Unsupported("end messages with one of the assistant", (False,)),
    "include": Unsupported("leave it out; there is nothing more to tell", ([],)),
    "previous_response_id": NOT_OF_CHAT["previous_response_id"],
    "conversation": NOT_OF_CHAT["conversation"],
    "background": NOT_OF_CHAT["background"],
    "truncation": NOT_OF_CHAT["truncation"],
}


def check_supported(fields: Mapping[str, Any], more: Mapping[str, Unsupported]) -> None:
    """Check the fields of a body that its model does not have.

    Args:
        fields: by name.
        more: what is not supported on this route alone.

    Raises:
        WireException: one of them asks for what is not there.
    """
    for name, value in fields.items():
        field = more.get(name) or UNSUPPORTED.get(name)
        if field is None or value is None:
            continue
        if not any(type(value) is type(none) and value == none for none in field.harmless):
            raise request_error(
                f"[request] {name}: expected none, it is not supported; {field.remedy}",
                param=name,
                code="unsupported_parameter",
            )
