"""Files of tokenizers that would end the process, hang it or fill its memory are refused."""

import json
import time
from typing import Any

import pytest

from pyvt.errors import CheckpointError, RequestError, UnsupportedError
from pyvt.tokenizer import RenderedPrompt, hf_tokenizer
from tests.tokenizer.test_hf import small_json

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def split(regex: str) -> dict[str, Any]:
    """Return a pre-tokenizer that cuts by a regex, then into bytes."""
    cut = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [cut, BYTES]}


def replace(content: str) -> dict[str, Any]:
    """Return a normalizer that puts ``content`` for each l."""
    return {"type": "Replace", "pattern": {"String": "l"}, "content": content}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param(
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//////////8="}},
            "normalizer.type: expected .*Precompiled",
            id="aborts",
        ),
        pytest.param({"normalizer": replace("l" * 100)}, "64 times as long", id="long"),
        pytest.param(
            {"normalizer": {"type": "Sequence", "normalizers": [replace("llll")] * 10}},
            "64 times as long",
            id="powers",
        ),
        pytest.param(
            {"normalizer": {"type": "Prepend", "prepend": "x" * 100}}, "64 times", id="prepend"
        ),
        pytest.param(
            {"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "FixedLength", id="panics"
        ),
        pytest.param(
            {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}},
            "model.type: expected BPE, got 'Unigram'",
            id="model",
        ),
        pytest.param(
            {"model": json.loads(small_json())["model"] | {"dropout": 0.5}},
            "dropout: expected none",
            id="dropout",
        ),
    ],
)
def test_part_that_is_not_known_is_refused(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        hf_tokenizer(small_json(**parts), None)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[]", id="list"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"model": 5}', id="model"),
        pytest.param('{"model": {}, "normalizer": 5}', id="part"),
        pytest.param('{"normalizer": null, "normalizer": null}', id="twice"),
        pytest.param("," * 4_000_000, id="values"),
    ],
)
def test_content_of_another_form_is_refused(content: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer.json: expected"):
        hf_tokenizer(content, None)


def test_regex_that_takes_for_ever_refuses_the_text() -> None:
    """The package panics, which is no ``Exception``."""
    tokenizer = hf_tokenizer(small_json(pre_tokenizer=split("(a+)+$")), None)
    text = "a" * 40 + "!"
    start_s = time.perf_counter()

    with pytest.raises(RequestError, match="expected text that the model's tokenizer can encode"):
        tokenizer.encode(text)
    with pytest.raises(RequestError, match="messages: expected text"):
        tokenizer.encode_rendered(RenderedPrompt(text, text))

    assert time.perf_counter() - start_s < 10


def test_template_that_panics_is_refused() -> None:
    post_processor = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "B", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    tokenizer = hf_tokenizer(small_json(post_processor=post_processor), None)

    with pytest.raises(RequestError, match="prompt: expected text"):
        tokenizer.encode("hello")


def test_vocabulary_with_holes_is_as_high_as_its_highest_id() -> None:
    model = json.loads(small_json())["model"]
    model |= {"vocab": model["vocab"] | {"ll": 5000}, "merges": [["l", "l"]]}

    tokenizer = hf_tokenizer(small_json(model=model), None)

    assert tokenizer.vocab_size == 5001
    added = {token_id for text in ("<s>", "</s>", "<think>") for token_id in tokenizer.encode(text)}
    assert tokenizer.unused_ids == set(range(256, 5000)) - added
    assert tokenizer.encode("ll") == [5000]
    assert tokenizer.decode([5000]) == "ll"
