"""One request with ``n`` answers becomes ``n`` requests of one answer each.

The core, the scheduler and the worker know requests of one answer only. Answer ``i`` draws with
the seed ``seed + i`` modulo 2⁶⁴, so the first equals the answer of the same request with ``n = 1``.
The others start when the first has computed the prompt, and share its KV.
Log probabilities and the vector of the prompt are computed for the first only.
"""

from dataclasses import replace

from pyvt.messages import EngineCoreRequest

_SEED_MODULUS = 2**64


def fan_out(request: EngineCoreRequest) -> tuple[EngineCoreRequest, ...]:
    """Return the requests that give the answers of a request, by index; itself where n is 1."""
    params = request.sampling_params
    if params.n == 1:
        return (request,)
    assert params.seed is not None, "the input processor resolves the seed"
    first_id = f"{request.request_id}#0"
    return tuple(
        replace(
            request,
            request_id=f"{request.request_id}#{index}",
            sampling_params=replace(
                params,
                n=1,
                best_of=None,
                seed=(params.seed + index) % _SEED_MODULUS,
                prompt_logprobs=None if index else params.prompt_logprobs,
                prompt_pooling=None if index else params.prompt_pooling,
            ),
            fork_of=first_id if index > 0 else None,
            parent_id=request.request_id,
            index=index,
        )
        for index in range(params.n)
    )
