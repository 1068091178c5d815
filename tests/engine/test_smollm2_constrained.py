"""SmolLM2: drafts change nothing, and what is asked for comes out."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams

pytestmark = [
    pytest.mark.native,
]

REPEATS = "red, green, blue, red, green, blue, red, green, blue, red,"
ENGLISH = "The capital of France is"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), max_model_len=256, max_num_seqs=4)


@pytest.fixture(scope="module")
def speculating(smollm2_path: Path) -> LLM:
    return LLM(str(smollm2_path), max_model_len=256, max_num_seqs=4, speculation="ngram")


def test_smollm2_answers_are_the_same_to_the_bit_with_drafts(plain: LLM, speculating: LLM) -> None:
    params = [
        SamplingParams(max_tokens=24, temperature=0, logprobs=3, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=0.8, seed=4, logprobs=3, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=0, logprobs=3, repetition_penalty=1.1),
    ]
    prompts = [REPEATS, REPEATS, ENGLISH]

    want = plain.generate(prompts, params)
    got = speculating.generate(prompts, params)

    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]
    assert [o.outputs[0].logprobs for o in got] == [o.outputs[0].logprobs for o in want]
    assert speculating.engine.core.stats.spec_decode_num_accepted_tokens >= 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_smollm2_json_is_valid_and_the_same_with_drafts(
    plain: LLM, speculating: LLM, temperature: float
) -> None:
    params = SamplingParams(
        max_tokens=40,
        temperature=temperature,
        seed=1,
        structured_outputs=StructuredOutputsParams(json=PERSON),
    )
    question = [{"role": "user", "content": "Describe a person as JSON."}]

    texts = [llm.chat(question, params)[0].outputs[0].text for llm in (plain, speculating)]

    jsonschema.validate(json.loads(texts[0]), PERSON)
    assert texts[0] == texts[1]


def test_smollm2_chooses(plain: LLM) -> None:
    structure = StructuredOutputsParams(choice=[" London", " Paris", " Rome"])

    (output,) = plain.generate(
        ENGLISH, SamplingParams(max_tokens=8, temperature=0, structured_outputs=structure)
    )

    assert output.outputs[0].text == " Paris"
