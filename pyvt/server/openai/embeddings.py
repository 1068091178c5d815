"""POST /v1/embeddings: a vector for each text, from the hidden states of the model that is loaded.

A vector has length 1, or the length of the hidden states with ``normalize`` false. Base64 is what
OpenAI sends: little-endian f32.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from pyvt.outputs import unit_vector, vector_as_base64
from pyvt.sampling_params import SamplingParams
from pyvt.server.errors import body_of, request_error
from pyvt.server.fields import checked
from pyvt.server.generation import Generation, usage_of
from pyvt.server.openai.completions import prompt_list, start_all
from pyvt.server.openai.schema import QueueFields
from pyvt.server.sse import until_client_leaves
from pyvt.server.state import gathered, request_id_of, state_of
from pyvt.server.unsupported import NOT_OF_COMPLETIONS, Unsupported


class EmbeddingsRequest(QueueFields):
    """POST /v1/embeddings."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        "add_special_tokens": NOT_OF_COMPLETIONS["add_special_tokens"]
    }

    input: str | list[int] | list[str | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None


async def embeddings(request: Request) -> ASGIApp:
    """Answer the vectors of texts, in their order."""
    state = state_of(request)
    asked = checked(EmbeddingsRequest, await state.body(request))
    model = state.model_name(asked.model)
    prompts = prompt_list(asked.input, "input")
    if asked.dimensions is not None and asked.dimensions < 1:
        raise _dimensions("at least 1", asked.dimensions)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_pooling=asked.pooling or "last")
    response_id = f"embd-{request_id_of(request)}"
    generations = await start_all(
        request, asked, params, prompts, response_id, is_stream=False, names={"prompt": "input"}
    )
    work = gathered([generation.run() for generation in generations])
    await until_client_leaves(request.receive, work)
    data = [
        {"object": "embedding", "index": index, "embedding": _embedding(asked, generation)}
        for index, generation in enumerate(generations)
    ]
    num_tokens = usage_of(generations).num_prompt_tokens
    body: dict[str, Any] = {
        "id": response_id,
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    if warnings := asked.warnings():
        body["warnings"] = warnings
    return Response(body_of(body), media_type="application/json")


def _embedding(asked: EmbeddingsRequest, generation: Generation) -> Sequence[float] | str:
    assert generation.output is not None, "a finished request has an output"
    vector = generation.output.embedding
    assert vector is not None, "a prompt that was computed has its vector"
    size = asked.dimensions or len(vector)
    if size > len(vector):
        raise _dimensions(f"at most {len(vector)}", size)
    vector = vector[:size]
    if asked.normalize is not False:
        vector = unit_vector(vector)
    if asked.encoding_format == "base64":
        return vector_as_base64(vector)
    return vector


def _dimensions(expected: str, got: int) -> Exception:
    return request_error(
        f"[request] dimensions: expected {expected}, got {got}",
        param="dimensions",
        code="invalid_value",
    )
