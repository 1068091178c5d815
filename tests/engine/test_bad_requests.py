"""Requests that are refused while another one runs: it keeps its tokens."""

from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams
from tests.engine.engines import engine_of, is_idle

IDS = [-1, 260, 300, 2**31, 2**63, "x", 1.5, float("nan")]
BAD: dict[str, list[Any]] = {
    "logit_bias": [{"AI": 1.0}, *({i: 1.0} for i in IDS[:5]), {1: float("nan")}],
    "stop_token_ids": [[i] for i in IDS],
    "allowed_token_ids": [[i] for i in IDS],
    "banned_token_ids": [[i] for i in IDS],
    "bad_words": [["a", 1], [" "], [""], ["\ud83d"]],
    "stop": [[""], [1], ["\ud83d", 2]],
    "max_tokens": [0, -1, 10**6],
    "logprobs": [-1, 21],
    "prompt_logprobs": [-1, 21],
}
STRUCTURES: list[dict[str, Any]] = [
    {"json": {"not": {}}},
    {"json": {"type": "object", "properties": {"x": {"allOf": [{"not": {"const": 1}}]}}}},
    {"regex": "(?=b)"},
    {"grammar": "root ::= ("},
    {"regex": "a{90}"},
]


def test_refused_requests_leave_the_running_one_alone() -> None:
    params = SamplingParams(max_tokens=90, seed=3, ignore_eos=True)
    alone = LLM.from_engine(engine_of()).generate("victim", params)[0].outputs[0].token_ids
    engine = engine_of()
    llm = LLM.from_engine(engine)
    stream = llm.stream("victim", params)
    tokens = list(next(stream).outputs[0].token_ids)

    for name, values in BAD.items():
        for value in values:
            with pytest.raises(RequestError) as refused:
                llm.generate("x", SamplingParams(**{name: value}))
            assert refused.value.param == name, value
    for structure in STRUCTURES:
        with pytest.raises(RequestError):
            llm.generate(
                "x",
                SamplingParams(
                    max_tokens=80, structured_outputs=StructuredOutputsParams(**structure)
                ),
            )
    for prompt in ([999_999], [-1], [260], [1.5], ["x"], []):
        with pytest.raises(RequestError) as refused:
            llm.generate([prompt], params)  # type: ignore[list-item]
        assert refused.value.param == "prompt", prompt

    tokens += [token for output in stream for token in output.outputs[0].token_ids]
    assert tuple(tokens) == alone
    assert is_idle(engine)
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].finished


def test_highest_ids_of_the_vocabulary_are_taken() -> None:
    llm = LLM.from_engine(engine_of())
    params = SamplingParams(
        max_tokens=2,
        logit_bias={259: 1.0},
        stop_token_ids=[259],
        banned_token_ids=[258],
        allowed_token_ids=[0, 259],
    )

    assert llm.generate([[259, 0]], params)[0].finished
