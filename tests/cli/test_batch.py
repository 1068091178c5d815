"""``pyvt batch`` over a fake engine: every line answered once, whatever stops it between."""

import base64
import json
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result, RunCommand
from tests.cli.fake_llm import FakeBuild

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
UseEngine = Any


def line(custom_id: Any, url: str = COMPLETION, **body: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {"prompt": "abc"} if url == COMPLETION else {
        "messages": [{"role": "user", "content": "abc"}]
    }  # fmt: skip
    body = {"max_tokens": 6, "seed": 1, "ignore_eos": True} | defaults | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, lines: Sequence[Any]) -> Path:
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """Return the answers by custom_id; each is there once."""
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert len({answer["id"] for answer in found}) == len(found)
    return {answer["custom_id"]: answer for answer in found}


class Batch:
    """Runs the command on a source and a target in a folder."""

    def __init__(self, run_command: RunCommand, use_engine: UseEngine, model: str, folder: Path):
        self._run, self._use, self._model = run_command, use_engine, model
        self.source, self.target = folder / "in.jsonl", folder / "out.jsonl"
        self.build: FakeBuild | None = None

    def __call__(self, lines: Sequence[Any] | None = None, **engine: Any) -> Result:
        if lines is not None:
            write(self.source, lines)
        self.build = self._use(**engine)
        return self._run("batch", str(self.source), str(self.target), "-m", self._model)


@pytest.fixture
def batch(run_command: RunCommand, use_engine: UseEngine, model: str, tmp_path: Path) -> Batch:
    return Batch(run_command, use_engine, model, tmp_path)


def test_batch_answers_every_line_by_its_custom_id(batch: Batch) -> None:
    result = batch([line("chat", CHAT), line("whole"), line("two", prompt=["x", [99, 100]], n=2)])

    found = answers(batch.target)
    assert (result.code, result.out) == (0, "")
    assert "done=3 failed=0 before=0 finish=complete" in result.err
    chat = found["chat"]["response"]["body"]
    assert (found["chat"]["response"]["status_code"], found["chat"]["error"]) == (200, None)
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert chat["choices"][0]["finish_reason"] == "length"
    assert chat["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    two = found["two"]["response"]["body"]
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    assert two["usage"]["completion_tokens"] == 24


def test_batch_answers_do_not_depend_on_what_runs_beside(batch: Batch, tmp_path: Path) -> None:
    lines = [line(f"{n}", prompt=f"prompt {n}", seed=n) for n in range(30)]
    batch(lines)
    together = {name: a["response"]["body"]["choices"] for name, a in answers(batch.target).items()}

    for name in ("3", "29"):
        batch.target.unlink()
        batch([lines[int(name)]])
        assert answers(batch.target)[name]["response"]["body"]["choices"] == together[name]


BAD_LINES: dict[str, tuple[Any, str]] = {
    "no-json": ("{oops", "expected a JSON object, got other text: Expecting property"),
    "nan": ('{"custom_id": "x", "body": NaN}', "which is no JSON"),
    "deep": ("[" * 100_000, "expected a JSON object"),
    "list": ("[]", "expected a JSON object"),
    "no-id": ({"url": CHAT, "body": {}}, "custom_id: expected a string"),
    "method": (line("x") | {"method": "GET"}, "method: expected 'POST'"),
    "url": (line("x") | {"url": "/v1/images"}, "url: expected one of"),
    "body": (line("x") | {"body": []}, "body: expected an object"),
    "unknown": (line("x", max_token=3), "body.max_token: is unknown .* did you mean 'max_tokens'"),
    "stream": (line("x", stream=True), "stream: expected false"),
    "echo": (line("x", echo=True), "echo: expected false"),
    "prompt": (line("x", prompt=None), "prompt: expected a string"),
    "ids": (line("x", prompt=[10**9]), "prompt: expected token ids"),
    "surrogate": (line("x", prompt="\ud83d"), "lone surrogate"),
    "context": (line("x", prompt="y" * 500), "context of 400"),
    "temperature": (line("x", temperature="hot"), "temperature: expected"),
    "bias": (line("x", logit_bias={"AI": 1}), "logit_bias: expected"),
    "bias-of-digits": (line("x", logit_bias={"1" * 5000: 1}), "logit_bias: expected"),
    "prompts": (line("x", prompt=["a"] * 20_000), "prompt: expected at most 16384 prompts"),
    "best_of": (line("x", n=1, best_of=2), "best_of: expected"),
    "messages": (line("x", CHAT, messages="hi"), "messages: expected"),
    "top_logprobs": (line("x", CHAT, top_logprobs=2), "top_logprobs: expected"),
    "logprobs": (line("x", CHAT, logprobs=2), "logprobs: expected true or false"),
    "format": (line("x", CHAT, response_format={"type": "xml"}), "response_format: expected"),
    "form": (line("x", structured_outputs={"regx": "a"}), "structured_outputs: expected"),
    "two_forms": (
        line("x", response_format={"type": "json_object"}, structured_outputs={"regex": "a"}),
        "not both",
    ),
    "form_and_eos": (
        line("x", response_format={"type": "json_object"}, ignore_eos=True),
        "ignore_eos: expected false",
    ),
    "image": (
        line("x", CHAT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        r"messages\[0\].content\[0\]: expected a part of type 'text'",
    ),
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_batch_bad_line_gives_an_error_line_and_the_run_goes_on(bad: str, batch: Batch) -> None:
    text, message = BAD_LINES[bad]

    result = batch([line("before"), text, line("after")])

    found = answers(batch.target)
    (failed,) = [answer for name, answer in found.items() if name not in ("before", "after")]
    assert result.code == 1
    assert "done=2 failed=1 before=0" in result.err
    assert failed["id"] == "batch_req_2"
    assert failed["response"]["status_code"] == 400
    assert failed["error"]["message"] == failed["response"]["body"]["error"]["message"]
    assert re.search(message, failed["error"]["message"])
    assert found["after"]["error"] is None


def test_batch_line_may_ask_for_a_form_of_its_text(batch: Batch) -> None:
    forms = {
        "object": {"response_format": {"type": "json_object"}},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "regex": {"structured_outputs": {"regex": "a+"}},
        "text": {"response_format": {"type": "text"}},
    }

    result = batch(
        [line(name, CHAT, ignore_eos=False, max_tokens=20, **form) for name, form in forms.items()]
    )

    assert result.code == 0, result.err
    assert answers(batch.target).keys() == forms.keys()


def embedding(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": EMBEDDING, "body": body}


def test_batch_line_may_ask_for_vectors(batch: Batch) -> None:
    lines = [
        embedding("two", input=["ab", [99]], model=None),
        embedding("packed", input="ab", encoding_format="base64"),
        embedding("short", input="ab", dimensions=2, normalize=False, pooling="mean"),
        embedding("long", input="ab", dimensions=10**6),
        embedding("none", input="ab", dimensions=0),
        embedding("form", input="ab", encoding_format="hex"),
        embedding("hot", input="ab", temperature=1),
        embedding("empty", input=[]),
    ]

    result = batch(lines)

    assert "done=3 failed=5 before=0" in result.err
    found = answers(batch.target)
    body = found["two"]["response"]["body"]
    vectors = [entry["embedding"] for entry in body["data"]]
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    packed = base64.b64decode(found["packed"]["response"]["body"]["data"][0]["embedding"])
    assert struct.unpack(f"<{len(vectors[0])}f", packed) == pytest.approx(vectors[0])
    assert len(found["short"]["response"]["body"]["data"][0]["embedding"]) == 2
    params = {name: found[name]["response"]["body"]["error"]["param"] for name in
              ("long", "none", "form", "hot", "empty")}  # fmt: skip
    assert params == {"long": "dimensions", "none": "dimensions", "form": "encoding_format",
                      "hot": "temperature", "empty": "prompt"}  # fmt: skip


def test_batch_failed_request_gives_an_error_line(batch: Batch) -> None:
    result = batch([line("good"), line("bad")], failing=("batch-2-0",))

    bad = answers(batch.target)["bad"]
    assert result.code == 1
    assert bad["response"]["status_code"] == 500
    assert bad["error"]["message"] == "logits are not finite"


def test_batch_second_custom_id_is_an_error(batch: Batch) -> None:
    batch([line("a"), line("a")])

    texts = [json.loads(text) for text in batch.target.read_text().splitlines()]
    by_id = {answer["id"]: answer["error"] for answer in texts}
    assert by_id["batch_req_1"] is None
    assert "came before" in by_id["batch_req_2"]["message"]


def test_batch_null_counts_as_absent(batch: Batch) -> None:
    names = ("temperature", "top_p", "stop", "logit_bias", "logprobs", "n", "stream", "user")

    batch([line("a"), line("b", **dict.fromkeys(names))])

    found = answers(batch.target)
    texts = [found[name]["response"]["body"]["choices"] for name in "ab"]
    assert texts[0] == texts[1]


def test_batch_interrupted_goes_on_without_losing_or_repeating_a_line(batch: Batch) -> None:
    """Again and again, with a torn last line in between; then equal to a run in one piece."""
    lines = [line(f"{n}", prompt=f"prompt {n}", max_tokens=3 + n % 6) for n in range(200)]
    batch(lines)
    whole = answers(batch.target)
    batch.target.unlink()

    codes = []
    while (result := batch(interrupt_at=(10,))).code == 130:
        codes.append(result.code)
        assert "finish=interrupted" in result.err
        with batch.target.open("ab") as torn:
            torn.write(b'{"id": "batch_req_')

    found = answers(batch.target)
    assert len(codes) >= 2
    assert found.keys() == whole.keys()
    for name, answer in found.items():
        assert answer["response"]["body"]["choices"] == whole[name]["response"]["body"]["choices"]


def test_batch_that_is_complete_does_nothing_again(batch: Batch) -> None:
    batch([line("a"), "{bad"])
    before = batch.target.read_bytes()

    result = batch()

    assert result.code == 1, "a line of the output failed, be it in an earlier run"
    assert "done=0 failed=0 before=2 failed_before=1 " in result.err
    assert batch.target.read_bytes() == before


def test_batch_line_that_names_another_model_fails_alone(batch: Batch, model: str) -> None:
    named = [line("path", model=model), line("file", model=Path(model).name), line("none")]

    result = batch([named[0], line("other", model="gpt-4o"), *named[1:]])

    found = answers(batch.target)
    assert (result.code, "done=3 failed=1" in result.err) == (1, True)
    assert found["other"]["response"]["status_code"] == 404
    assert found["other"]["error"]["code"] == "model_not_found"
    assert "'gpt-4o'" in found["other"]["error"]["message"]
    assert [found[name]["error"] for name in ("path", "file", "none")] == [None] * 3
    told = {found[name]["response"]["body"]["model"] for name in ("path", "file", "none")}
    assert told == {Path(model).name}, "the path stays on this machine"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ('{"id": "batch_req_1", "custom_id": "other"}\n', "another custom_id"),
        ('{"id": "batch_req_9", "custom_id": "a"}\n', "lines that the source does not have"),
        ("something else\n", "line 1 is no answer"),
        ('{"no": "id"}\n', "line 1 is no answer"),
    ],
)
def test_batch_target_of_something_else_is_refused_and_left_as_it_is(
    target: str, message: str, batch: Batch
) -> None:
    batch.target.write_text(target)

    result = batch([line("a")])

    assert result.code == 2
    assert message in result.err
    assert batch.target.read_text() == target


@pytest.mark.parametrize("name", ["source", "target"])
def test_batch_pipe_is_refused_before_it_is_read(name: str, batch: Batch) -> None:
    write(batch.source, [line("a")])
    pipe = batch.source.with_name("pipe")
    os.mkfifo(pipe)
    setattr(batch, name, pipe)

    result = batch()

    assert result.code == 2
    assert f"[batch] {name}: expected a file on disk" in result.err


def test_batch_dash_is_no_name_of_a_target(batch: Batch) -> None:
    batch.target = Path("-")
    assert "got '-'" in batch([line("a")]).err
    assert not Path("-").exists()


def test_batch_empty_source_gives_an_empty_target(batch: Batch) -> None:
    assert batch([]).code == 0
    assert batch.target.read_bytes() == b""


def test_batch_target_in_a_folder_that_is_not_there_is_refused_before_the_model_loads(
    batch: Batch,
) -> None:
    batch.target = batch.target.parent / "none" / "out.jsonl"

    result = batch([line("a")])

    assert result.code == 2
    assert "expected a file in a folder that exists" in result.err


def test_batch_missing_source_ends_with_code_2(batch: Batch) -> None:
    assert batch().code == 2
