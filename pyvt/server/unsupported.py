"""Fields that clients of OpenAI, vLLM and Anthropic know and that are not supported here.

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
    "output_format": Unsupported("send output_config with a format"),
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
