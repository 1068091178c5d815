"""Lines of ``pyvt batch``: requests in, answers out, in the form of OpenAI's batch files.

1. A line of the input is a JSON object: ``custom_id`` (unique), ``method`` (``POST``), ``url``
   (``/v1/chat/completions``, ``/v1/completions`` or ``/v1/embeddings``) and ``body``.
2. A line of the output has ``id`` (``batch_req_N`` for line N of the input, counted from 1),
   ``custom_id``, ``response`` (``status_code``, ``request_id``, ``body``) and ``error``.
3. For a line that cannot be served ``response`` has the status and the error as a server would
   give them, and ``error`` has ``code`` and ``message``.
4. A field of the body that is null counts as absent; an unknown one is refused, and so is a
   ``model`` that is not the loaded one.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyvt.cli.model_path import served_name
from pyvt.engine.engine_thread import MAX_REQUESTS
from pyvt.engine.input_processor import Prompt
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import PyvtError, RequestError, did_you_mean
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import (
    CompletionOutput,
    PositionLogprobs,
    RequestOutput,
    unit_vector,
    vector_as_base64,
)
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams

STATUS_BAD, STATUS_NOT_FOUND, STATUS_FAILED = 400, 404, 500
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions

_SAME_NAME = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "best_of"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens"),
    *("stop_token_ids", "ignore_eos", "bad_words", "include_stop_str_in_output"),
    *("skip_special_tokens", "allowed_token_ids", "banned_token_ids"),
)
_FORM = ("response_format", "structured_outputs")
_WITHOUT_EFFECT = ("model", "user", "metadata", "stream")
_CHAT_FIELDS = (
    *("messages", "tools", "chat_template_kwargs", "add_generation_prompt"),
    *("max_completion_tokens", "logprobs", "top_logprobs", "logit_bias"),
)
_COMPLETION_FIELDS = ("prompt", "logprobs", "logit_bias", "echo")
_EMBEDDING_FIELDS = ("input", "encoding_format", "dimensions", "pooling", "normalize")
_ENCODINGS = ("float", "base64")


@dataclass(frozen=True, slots=True)
class Job:
    """A line that can be run: its requests, and how their outputs become a body."""

    number: int
    custom_id: str
    requests: tuple[EngineCoreRequest, ...]
    body_of: Callable[[Sequence[RequestOutput]], dict[str, Any]]


class LineError(Exception):
    """A line cannot be served; carries what the output says about it."""

    def __init__(self, custom_id: str | None, error: PyvtError) -> None:
        super().__init__(str(error))
        self.custom_id = custom_id
        self.error = error


def read_custom_id(text: bytes) -> str | None:
    """Return the ``custom_id`` of a line, None where it has none that can be read."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    custom_id = line.get("custom_id") if isinstance(line, dict) else None
    return custom_id if isinstance(custom_id, str) else None


def read_job(text: bytes, number: int, engine: LLMEngine, model: str) -> Job:
    """Return the job of a line of the input.

    Args:
        text: the line.
        number: of the line, from 1.
        engine: checks and tokenises.
        model: the name of the model as the command was given it.

    Raises:
        LineError: the line is no request, or one that cannot be served.
    """
    custom_id = read_custom_id(text)
    try:
        line = _object(text)
        if custom_id is None:
            raise _refused("custom_id", "a string", line.get("custom_id"))
        if line.get("method", "POST") != "POST":
            raise _refused("method", "'POST'", line["method"])
        url = line.get("url")
        if url not in _READERS:
            raise _refused("url", f"one of {', '.join(map(repr, _READERS))}", url)
        body = line.get("body")
        if not isinstance(body, dict):
            raise _refused("body", "an object", body)
        fields = {name: value for name, value in body.items() if value is not None}
        _check_model(fields.get("model", model), model)
        prompts, params, body_of = _READERS[url](
            fields, engine, f"batch-{number}", served_name(model)
        )
        requests = tuple(
            engine.process(f"batch-{number}-{index}", prompt, params)
            for index, prompt in enumerate(prompts)
        )
        engine.check_admissible(requests)
        if len(requests) > MAX_REQUESTS:
            raise _refused("prompt", f"at most {MAX_REQUESTS} prompts", len(requests))
    except PyvtError as error:
        raise LineError(custom_id, error) from error
    return Job(number, custom_id, requests, body_of)


def answer_line(job: Job, outputs: Sequence[RequestOutput]) -> tuple[bytes, bool]:
    """Return the line of the output for a job that has ended, and whether it is an error."""
    failed = next((output for output in outputs if output.error is not None), None)
    if failed is not None:
        fault = PyvtError(str(failed.error))
        return error_line(job.number, job.custom_id, fault, status=STATUS_FAILED), True
    try:
        body = job.body_of(outputs)
    except RequestError as error:  # what only the answer shows, such as the length of a vector
        return error_line(job.number, job.custom_id, error), True
    return _line(job.number, job.custom_id, 200, body, None), False


def error_line(
    number: int, custom_id: str | None, error: PyvtError, *, status: int = STATUS_BAD
) -> bytes:
    """Return the line of the output for a line that failed."""
    kind = "invalid_request_error" if status == STATUS_BAD else "server_error"
    code = getattr(error, "code", None) or kind
    if code == "model_not_found":
        status = STATUS_NOT_FOUND
    body = {
        "error": {
            "message": str(error),
            "type": kind,
            "param": getattr(error, "param", None),
            "code": code,
        }
    }
    return _line(number, custom_id, status, body, {"code": code, "message": str(error)})


def line_id(number: int) -> str:
    """Return the id of the answer to a line."""
    return f"batch_req_{number}"


def _line(
    number: int,
    custom_id: str | None,
    status: int,
    body: dict[str, Any],
    error: dict[str, Any] | None,
) -> bytes:
    response = {"status_code": status, "request_id": f"batch-{number}", "body": body}
    line = {
        "id": line_id(number),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    try:
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair in the custom_id
        return json.dumps(line).encode() + b"\n"


def _object(text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"[batch] line: expected a JSON object, got other text: {error}"
        ) from error
    if not isinstance(line, dict):
        raise _refused("line", "a JSON object", line)
    return line


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


def _check_model(asked: Any, model: str) -> None:
    name = served_name(model)
    if asked not in (model, name):
        raise RequestError(
            f"[batch] model: expected {name!r}, which this run has loaded, got {asked!r}; run "
            "the lines of another model with -m",
            param="model",
            code="model_not_found",
        )


_Read = tuple[Sequence[Prompt], SamplingParams, Callable[[Sequence[RequestOutput]], dict[str, Any]]]


def _chat(body: Mapping[str, Any], engine: LLMEngine, name: str, model: str) -> _Read:
    _check_fields(body, _CHAT_FIELDS)
    params = _params(body, engine.default_params)
    if "max_completion_tokens" in body:
        params = replace(params, max_tokens=body["max_completion_tokens"])
    if not isinstance(body.get("logprobs", False), bool):
        raise _refused("logprobs", "true or false", body["logprobs"])
    if body.get("logprobs", False):
        params = replace(params, logprobs=body.get("top_logprobs", 0))
    elif "top_logprobs" in body:
        raise _refused("top_logprobs", "logprobs to be true", body["top_logprobs"])
    prompt = engine.input_processor.render(
        body.get("messages"),  # type: ignore[arg-type] # render checks it
        tools=body.get("tools"),
        add_generation_prompt=body.get("add_generation_prompt", True),
        chat_template_kwargs=body.get("chat_template_kwargs"),
    )

    def body_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        choices = [
            {
                "index": answer.index,
                "message": {"role": "assistant", "content": answer.text},
                "logprobs": _chat_logprobs(answer),
                "finish_reason": answer.finish_reason,
            }
            for answer in outputs[0].outputs
        ]
        return _body("chat.completion", f"chatcmpl-{name}", model, choices, outputs)

    return [prompt], params, body_of


def _completion(body: Mapping[str, Any], engine: LLMEngine, name: str, model: str) -> _Read:
    _check_fields(body, _COMPLETION_FIELDS)
    if body.get("echo", False):
        raise _refused("echo", "false", body["echo"])
    params = _params(body, engine.default_params)
    if "max_tokens" not in body:
        params = replace(params, max_tokens=max(DEFAULT_COMPLETION_TOKENS, params.min_tokens))
    if "logprobs" in body:
        params = replace(params, logprobs=body["logprobs"])
    prompts = _prompts(body.get("prompt"))

    def body_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        answers = [answer for output in outputs for answer in output.outputs]
        choices = [
            {
                "index": index,
                "text": answer.text,
                "logprobs": _completion_logprobs(answer),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers)
        ]
        return _body("text_completion", f"cmpl-{name}", model, choices, outputs)

    return prompts, params, body_of


def _embedding(body: Mapping[str, Any], engine: LLMEngine, name: str, model: str) -> _Read:
    _check_known(body, (*_WITHOUT_EFFECT, *_EMBEDDING_FIELDS))
    encoding = body.get("encoding_format", "float")
    if encoding not in _ENCODINGS:
        raise _refused("encoding_format", f"one of {', '.join(map(repr, _ENCODINGS))}", encoding)
    size = body.get("dimensions")
    if size is not None and (type(size) is not int or size < 1):
        raise _refused("dimensions", "an integer of at least 1", size)
    is_unit = body.get("normalize", True)
    if not isinstance(is_unit, bool):
        raise _refused("normalize", "true or false", is_unit)
    pooling = body.get("pooling", "last")
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_pooling=pooling)
    prompts = _prompts(body.get("input"))

    def vector_of(output: RequestOutput) -> Sequence[float] | str:
        assert output.embedding is not None, "a prompt that was computed has its vector"
        if size is not None and size > len(output.embedding):
            raise _refused("dimensions", f"at most {len(output.embedding)}", size)
        vector = output.embedding[:size]
        vector = unit_vector(vector) if is_unit else vector
        return vector if encoding == "float" else vector_as_base64(vector)

    def body_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        num_tokens = sum(output.metrics.num_prompt_tokens for output in outputs)
        data = [
            {"object": "embedding", "index": index, "embedding": vector_of(output)}
            for index, output in enumerate(outputs)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        head = {"id": f"embd-{name}", "object": "list"}
        return {**head, "data": data, "model": model, "usage": usage}

    return prompts, params, body_of


_READERS: dict[str, Callable[[Mapping[str, Any], LLMEngine, str, str], _Read]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embedding,
}


def _check_fields(body: Mapping[str, Any], own: Sequence[str]) -> None:
    _check_known(body, (*_SAME_NAME, *_FORM, *_WITHOUT_EFFECT, *own))
    if body.get("stream", False):
        raise _refused("stream", "false", body["stream"])


def _check_known(body: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in body:
        if name not in known:
            raise RequestError(
                f"[batch] body.{name}: is unknown or not supported; {did_you_mean(name, known)}",
                param=name,
                code="unknown_parameter",
            )


def _params(body: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    chosen = {name: body[name] for name in _SAME_NAME if name in body}
    if "logit_bias" in body:
        chosen["logit_bias"] = _logit_bias(body["logit_bias"])
    form = StructuredOutputsParams.of_request(*(body.get(name) for name in _FORM))
    if form is not None:
        chosen["structured_outputs"] = form
    return replace(defaults, **chosen)


def _logit_bias(value: Any) -> Any:
    """Return the map with its keys, which JSON writes as text, as numbers where they are."""
    if not isinstance(value, dict):
        return value
    # Longer keys are no ids, and Python refuses to read thousands of digits.
    return {
        int(key) if key.isascii() and key.isdecimal() and len(key) < 20 else key: bias
        for key, bias in value.items()
    }


def _prompts(prompt: Any) -> list[Prompt]:
    is_list = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return list(prompt) if is_list else [prompt]


def _body(
    kind: str,
    name: str,
    model: str,
    choices: list[dict[str, Any]],
    outputs: Sequence[RequestOutput],
) -> dict[str, Any]:
    num_prompt = sum(output.metrics.num_prompt_tokens for output in outputs)
    num_new = sum(output.metrics.num_generated_tokens for output in outputs)
    return {
        "id": name,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_new,
            "total_tokens": num_prompt + num_new,
        },
    }


def _chat_logprobs(answer: CompletionOutput) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None

    def entry(token: Any) -> dict[str, Any]:
        return {
            "token": token.text,
            "logprob": token.logprob,
            "bytes": list(token.token_bytes),
        }

    def content(position: PositionLogprobs) -> dict[str, Any]:
        return {**entry(position.taken), "top_logprobs": [entry(t) for t in position.top]}

    return {"content": [content(position) for position in answer.logprobs]}


def _completion_logprobs(answer: CompletionOutput) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    return {
        "tokens": [position.taken.text for position in answer.logprobs],
        "token_logprobs": [position.taken.logprob for position in answer.logprobs],
        "top_logprobs": [
            {token.text: token.logprob for token in position.top} for position in answer.logprobs
        ],
    }


def _refused(param: str, expected: str, got: Any) -> RequestError:
    shown = repr(got)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return RequestError(
        f"[batch] {param}: expected {expected}, got {shown}", param=param, code="invalid_value"
    )
