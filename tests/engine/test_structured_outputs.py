"""Structured output through the engine over a tiny random model."""

import asyncio
import json
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import RequestError
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams
from pyvt.structured import compiler
from tests.engine.engine_backend import EXACT
from tests.engine.engines import engine_of
from tests.engine.tiny_model import write_tiny_model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EOS_ID, END_ID = 256, 3


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")), **EXACT)


def params_of(max_tokens: int = 60, *, temperature: float = 1.0, **structure: Any) -> Any:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=5,
        structured_outputs=StructuredOutputsParams(**structure),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("schema", [PERSON, {}, {"type": "array"}, {"enum": ["a", 1]}])
def test_answer_is_valid_before_the_tokens_end(llm: LLM, schema: Any, temperature: float) -> None:
    (output,) = llm.generate("x", params_of(json=schema, temperature=temperature))

    answer = output.outputs[0]
    jsonschema.validate(json.loads(answer.text), schema)
    assert answer.finish_reason == "stop"
    assert len(answer.token_ids) <= 60


@pytest.mark.parametrize("bias", [{EOS_ID: 100.0}, {EOS_ID: 100.0, END_ID: 100.0}])
def test_biased_end_does_not_cut_the_answer(llm: LLM, bias: dict[int, float]) -> None:
    structure = StructuredOutputsParams(json=PERSON)
    params = SamplingParams(max_tokens=80, seed=1, logit_bias=bias, structured_outputs=structure)

    (output,) = llm.generate("x", params)

    jsonschema.validate(json.loads(output.outputs[0].text), PERSON)


@pytest.mark.parametrize("letters", ["0123456789", "abcdefgh", '"\\u', "[{"])
@pytest.mark.parametrize("schema", [{}, True, {"type": "number"}, {"type": "string"}], ids=str)
def test_value_without_an_end_is_closed_in_time(llm: LLM, schema: Any, letters: str) -> None:
    """Digits, letters, escapes or brackets are all that the model wants to say."""
    bias = {token_id: 100.0 for letter in letters for token_id in llm.encode(letter)}
    structure = StructuredOutputsParams(json=schema)
    params = SamplingParams(max_tokens=30, seed=1, logit_bias=bias, structured_outputs=structure)

    (output,) = llm.generate("x", params)

    assert output.outputs[0].finish_reason == "stop"
    jsonschema.validate(json.loads(output.outputs[0].text), schema)


def test_rows_beside_a_grammar_keep_their_tokens(llm: LLM) -> None:
    free = SamplingParams(max_tokens=12, seed=9, ignore_eos=True)
    alone = llm.generate("victim", free)[0].outputs[0].token_ids

    beside = llm.generate(
        ["a", "victim", "b"], [params_of(json=PERSON), free, params_of(choice=["yes", "no"])]
    )

    assert beside[1].outputs[0].token_ids == alone
    assert beside[2].outputs[0].text in ("yes", "no")


def test_tokens_do_not_depend_on_the_batch(llm: LLM) -> None:
    params = params_of(json=PERSON)
    alone = llm.generate("p", params)[0].outputs[0].token_ids

    beside = llm.generate(
        ["a", "p", "c"], [params_of(regex="[a-z]{9}"), params, params_of(json={})]
    )

    assert beside[1].outputs[0].token_ids == alone


def test_complete_text_ends_before_min_tokens(llm: LLM) -> None:
    structure = StructuredOutputsParams(choice=["ab"])

    (output,) = llm.generate(
        "x", SamplingParams(max_tokens=30, min_tokens=20, structured_outputs=structure)
    )

    assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("close_within_budget", [True, False])
def test_text_that_is_complete_with_the_last_token_ends_with_stop(
    llm: LLM, close_within_budget: bool, is_stream: bool
) -> None:
    params = params_of(3, choice=["abc"], close_within_budget=close_within_budget)

    outputs = list(llm.stream("x", params)) if is_stream else llm.generate("x", params)

    answers = [output.outputs[0] for output in outputs]
    assert "".join(answer.text for answer in answers) == "abc"
    assert sum(len(answer.token_ids) for answer in answers) == 3
    assert (answers[-1].finish_reason, answers[-1].stop_reason) == ("stop", None)


@pytest.mark.parametrize(("regex", "reason"), [("[ab]{3}", "stop"), ("[ab]{3,4}", "length")])
def test_text_that_may_go_on_behind_the_last_token_ends_with_length(
    llm: LLM, regex: str, reason: str
) -> None:
    params = params_of(3, regex=regex, close_within_budget=False)

    (output,) = llm.generate("x", params)

    assert len(output.outputs[0].text) == 3
    assert output.outputs[0].finish_reason == reason


def test_text_that_may_go_on_does_so_up_to_min_tokens(llm: LLM) -> None:
    structure = StructuredOutputsParams(regex="[ab]+")

    (output,) = llm.generate(
        "x", SamplingParams(max_tokens=30, min_tokens=20, structured_outputs=structure)
    )

    assert len(output.outputs[0].token_ids) >= 20


def test_bad_words_inside_a_grammar_are_kept_out(llm: LLM) -> None:
    structure = StructuredOutputsParams(regex="[ab]{12}")

    (output,) = llm.generate(
        "x", SamplingParams(max_tokens=30, seed=2, bad_words=["aa"], structured_outputs=structure)
    )

    assert len(output.outputs[0].text) == 12
    assert "aa" not in output.outputs[0].text


@pytest.mark.parametrize(
    ("params", "param", "words"),
    [
        ({"max_tokens": 9}, "max_tokens", "needs at least 19 tokens, got max_tokens=9"),
        ({"ignore_eos": True}, "ignore_eos", "false where a grammar says"),
    ],
)
def test_request_that_cannot_end_well_is_refused(
    llm: LLM, params: dict[str, Any], param: str, words: str
) -> None:
    structure = StructuredOutputsParams(json=PERSON)

    with pytest.raises(RequestError, match=words) as refused:
        llm.generate("x", SamplingParams(structured_outputs=structure, **params))

    assert refused.value.param == param


def test_warnings_of_a_lax_schema_come_with_the_answer(llm: LLM) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}

    (output,) = llm.generate("x", params_of(json=schema, strict=False))

    assert ["uniqueItems" in warning for warning in output.warnings] == [True]


def test_prompt_logprobs_come_with_the_answer_and_take_no_prefix_hit(llm: LLM) -> None:
    prompt = "a prompt that is longer than one block of the cache, and than two of them"
    params = SamplingParams(max_tokens=2, prompt_logprobs=2, temperature=0)

    first, again = (llm.generate(prompt, params)[0].prompt_logprobs for _ in range(2))

    assert first == again
    assert first is not None
    assert first[0] is None
    taken = [position.taken.text for position in first if position is not None]
    assert "".join(taken) == prompt[1:]


def test_stream_gives_prompt_logprobs_once(llm: LLM) -> None:
    outputs = list(llm.stream("ab", SamplingParams(max_tokens=4, prompt_logprobs=0, seed=1)))

    assert [len(o.prompt_logprobs) for o in outputs if o.prompt_logprobs is not None] == [2]


def test_prompt_of_one_token_has_an_entry_too(llm: LLM) -> None:
    (output,) = llm.generate("a", SamplingParams(max_tokens=1, prompt_logprobs=1))

    assert output.prompt_logprobs == (None,)


def test_answers_of_one_request_each_satisfy_the_grammar(llm: LLM) -> None:
    structure = StructuredOutputsParams(json=PERSON)
    params = SamplingParams(max_tokens=60, seed=3, n=4, structured_outputs=structure)

    (output,) = llm.generate("x", params)

    assert len(output.outputs) == 4
    assert len({answer.text for answer in output.outputs}) > 1
    for answer in output.outputs:
        jsonschema.validate(json.loads(answer.text), PERSON)


def test_slow_grammar_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, compile_now = threading.Event(), compiler._compile

    def slow(*args: Any) -> Any:
        assert may_end.wait(60), "the grammar was never let go"
        return compile_now(*args)

    monkeypatch.setattr(compiler, "_compile", slow)
    llm = AsyncLLM.from_engine(engine_of())
    structures = [StructuredOutputsParams(choice=["slow", str(i)]) for i in range(4)]

    async def read(prompt: str, params: SamplingParams) -> str:
        stream = llm.generate(prompt, params)
        return "".join([output.outputs[0].text async for output in stream])

    async def main() -> None:
        waiting = [
            asyncio.create_task(read("x", SamplingParams(max_tokens=9, structured_outputs=one)))
            for one in structures
        ]
        await asyncio.sleep(0)
        await read("victim", SamplingParams(max_tokens=90, seed=1, ignore_eos=True))
        assert not any(task.done() for task in waiting)
        may_end.set()
        await asyncio.gather(*waiting)
        assert await llm.shutdown(timeout_s=60)

    asyncio.run(asyncio.wait_for(main(), 60))


NESTED: dict[str, Any] = {"type": "integer"}
for _ in range(32):
    NESTED = {"type": "array", "items": NESTED, "maxItems": 3}
SLOW_SCHEMAS = [
    NESTED,
    {"enum": [f"value {i}" for i in range(10_000)]},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
]


def test_stream_beside_slow_grammars_keeps_its_pace(tmp_path: Path) -> None:
    """They compile, and mask the rows beside it; a step waits 5 ms, as one of a larger model does.

    The bounds are five times what is wanted, twice the pace, and never a second of the CPU: a
    grammar that kept the lock or a mask without an end would take many.
    """
    folder = write_tiny_model(tmp_path / "model", max_position_embeddings=1000)
    llm = AsyncLLM(str(folder), **EXACT)
    runner = llm.thread.engine.core.runner
    execute, pause = runner.execute_model, threading.Event()

    def execute_slowly(output: Any) -> Any:
        pause.wait(0.005)
        return execute(output)

    runner.execute_model = execute_slowly  # type: ignore[method-assign]

    async def gaps(num_tokens: int) -> tuple[float, float]:
        params = SamplingParams(max_tokens=num_tokens, seed=1, ignore_eos=True)
        times = [(time.perf_counter(), time.process_time())]
        async for _ in llm.generate("victim", params):
            times.append((time.perf_counter(), time.process_time()))
        walls, cpus = ([b - a for a, b in pairwise(column)] for column in zip(*times, strict=True))
        return statistics.median(walls), max(cpus)

    async def read(schema: Any) -> str:
        answer = ""
        async for output in llm.generate("x", params_of(40, json=schema)):
            answer += output.outputs[0].text
        return answer

    async def main() -> None:
        pace, _ = await gaps(40)
        others = [asyncio.create_task(read(schema)) for schema in SLOW_SCHEMAS]
        await asyncio.sleep(0)
        beside, longest_cpu_s = await gaps(160)
        for schema, answer in zip(SLOW_SCHEMAS, await asyncio.gather(*others), strict=True):
            jsonschema.validate(json.loads(answer), schema)
        assert beside < 5 * 2 * pace
        assert longest_cpu_s < 1
        assert await llm.shutdown(timeout_s=60)

    asyncio.run(asyncio.wait_for(main(), 120))
