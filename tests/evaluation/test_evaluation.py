"""Perplexity and divergence through the engine, against what logits give directly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.convert import quantize_model
from pyvt.errors import ConfigError, RequestError
from pyvt.evaluation import divergence, perplexity, text_windows
from pyvt.evaluation.windows import Windows
from pyvt.llm import LLM
from pyvt.testing.model_runs import all_logits, load_case
from tests.convert.tiny_source import bpe_json, write_source

Array = np.ndarray[Any, Any]
TEXT = "hello wo abc 12345 hell — naïve text, in words. " * 4
SETTINGS: dict[str, Any] = {"backend": "numpy", "max_model_len": 64, "max_num_seqs": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval")
    write_source(folder / "model")
    quantize_model(folder / "model", folder / "q4.gguf", "q4_0")
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder / "model", **SETTINGS)


def direct_logprobs(model: Path, windows: Windows) -> Array:
    """Return the log-probabilities ``[n, V]`` of all scored positions."""
    loaded = load_case(model).model
    rows = []
    for window in windows:
        ids = np.array(window.token_ids)
        (logits,) = all_logits(loaded, [(ids, np.arange(len(ids)))])
        logits = logits[len(ids) - window.num_scored - 1 : -1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        rows.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return np.concatenate(rows)


def scored_ids(windows: Windows) -> Array:
    return np.concatenate([w.token_ids[-w.num_scored :] for w in windows])


@pytest.mark.parametrize(("window", "stride"), [(40, 40), (40, None), (33, 7), (4000, None)])
def test_windows_score_every_token_once(llm: LLM, window: int, stride: int | None) -> None:
    windows = text_windows(llm.tokenizer, TEXT, window=window, stride=stride)

    body = llm.tokenizer.encode(TEXT)
    assert scored_ids(windows).tolist() == body[1:]
    assert windows.num_scored == len(body) - 1
    assert max(len(w.token_ids) for w in windows) == min(window, len(body))
    for i, each in enumerate(windows):
        context = len(each.token_ids) - each.num_scored
        assert context >= (1 if i == 0 else windows.window - windows.stride)


def test_windows_begin_with_what_the_tokenizer_puts_before_a_text(folder: Path) -> None:
    bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    content = bpe_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "<|endoftext|>": {"id": "<|endoftext|>", "ids": [264], "tokens": ["<|endoftext|>"]}
            },
        }
    )
    write_source(folder / "bos", tokenizer=content)
    tokenizer = LLM(folder / "bos", **SETTINGS).tokenizer

    windows = text_windows(tokenizer, TEXT, window=30, stride=20)

    assert all(window.token_ids[0] == 264 for window in windows)
    assert scored_ids(windows).tolist() == tokenizer.encode(TEXT)[1:]


def test_perplexity_is_that_of_the_logits(folder: Path, llm: LLM) -> None:
    windows = text_windows(llm.tokenizer, TEXT, window=48, stride=20)

    found = perplexity(llm, windows)

    rows = direct_logprobs(folder / "model", windows)
    ids = scored_ids(windows)
    nats = -rows[np.arange(len(ids)), ids]
    assert found.num_tokens == len(ids)
    assert found.nats_per_token == pytest.approx(nats.mean(), rel=1e-5)
    assert found.perplexity == pytest.approx(np.exp(nats.mean()), rel=1e-4)
    assert found.error == pytest.approx(
        np.exp(nats.mean()) * nats.std(ddof=1) / np.sqrt(len(nats)), rel=1e-4
    )


def test_divergence_is_that_of_the_logits(folder: Path, llm: LLM) -> None:
    judged = LLM(folder / "q4.gguf", **SETTINGS, act="none")
    windows = text_windows(llm.tokenizer, TEXT, window=48, max_tokens=90)
    seen: list[int] = []

    found = divergence(judged, llm, windows, progress=seen.append)

    p = direct_logprobs(folder / "model", windows)
    q = direct_logprobs(folder / "q4.gguf", windows)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    ids, rows = scored_ids(windows), np.arange(89)
    assert found.num_tokens == 89
    assert seen[-1] == 89
    assert found.mean_kl == pytest.approx(kl.mean(), rel=1e-3)
    assert found.median_kl == pytest.approx(np.median(kl), rel=1e-3)
    assert found.p99_kl == pytest.approx(np.quantile(kl, 0.99), rel=1e-3)
    assert found.max_kl == pytest.approx(kl.max(), rel=1e-3)
    assert found.top1_agreement == (p.argmax(1) == q.argmax(1)).mean()
    assert found.perplexity == pytest.approx(np.exp(-q[rows, ids].mean()), rel=1e-4)
    assert found.reference_perplexity == pytest.approx(np.exp(-p[rows, ids].mean()), rel=1e-4)
    assert 0 < found.mean_kl < found.p99_kl


def test_a_model_is_no_distance_from_itself(llm: LLM) -> None:
    found = divergence(llm, llm, text_windows(llm.tokenizer, TEXT, window=48))

    assert found.max_kl == 0
    assert found.top1_agreement == 1


def test_models_of_other_tokenizers_are_refused(folder: Path, llm: LLM) -> None:
    write_source(folder / "larger", vocab_size=288)
    other = LLM(folder / "larger", **SETTINGS)

    with pytest.raises(ConfigError, match="same tokenizer, got vocabularies of 272 and 288"):
        divergence(llm, other, text_windows(llm.tokenizer, TEXT))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"window": 1}, "window: expected at least 2"), ({"window": 8, "stride": 9}, "1 to window=8")],
)
def test_sizes_that_cannot_be_are_refused(llm: LLM, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        text_windows(llm.tokenizer, TEXT, **settings)


def test_a_text_of_one_token_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="at least 2 tokens, got 1"):
        text_windows(llm.tokenizer, "a")
