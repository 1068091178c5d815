"""From the fields of a request to ``SamplingParams``: what is given replaces the model's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyvt import envs
from pyvt.sampling_params import SamplingParams
from pyvt.server.errors import request_error
from pyvt.server.openai.schema import GenerationFields, SamplingFields

# Fields of requests that are fields of SamplingParams, name for name.
SAME_NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "seed", "stop_token_ids", "ignore_eos", "min_tokens"),
    *(
        "forced_token_ids",
        "allowed_token_ids",
        "skip_special_tokens",
        "bad_words",
        "include_stop_str_in_output",
    ),
)


def sampling_params(request: SamplingFields, own: SamplingParams, **more: Any) -> SamplingParams:
    """Return the parameters of a request.

    Args:
        request: the checked request.
        own: the model's own defaults.
        more: fields that the route names in another way; None is absence.

    Raises:
        RequestError: a value is out of its range.
    """
    if request.forced_token_ids is not None and not envs.PYVT_TEST_HOOKS.is_on():
        raise request_error(
            "[request] forced_token_ids: expected none, it is for servers under test",
            param="forced_token_ids",
            code="unsupported_parameter",
        )
    settings = request.given(*SAME_NAMES)
    if request.logit_bias is not None:
        settings["logit_bias"] = _logit_bias(request.logit_bias)
    if isinstance(request, GenerationFields):
        settings |= request.given("stop", "n", "best_of", "prompt_logprobs")
        if request.prompt_logprobs is not None and request.stream:
            raise request_error(
                "[request] prompt_logprobs: expected none in a stream; ask for a whole answer",
                param="prompt_logprobs",
                code="unsupported_value",
            )
    settings |= {name: value for name, value in more.items() if value is not None}
    return replace(own, **settings)


def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
    """Return biases by id; JSON has them by text."""
    found = {}
    for text, bias in biases.items():
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise request_error(
                f"[request] logit_bias: expected token ids as names, got {text[:40]!r}",
                param="logit_bias",
                code="invalid_value",
            )
        found[int(text)] = bias
    return found
