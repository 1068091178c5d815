import json
from collections.abc import Callable

import pytest

from pyvt import hub
from pyvt.hub import fetch
from tests.cli.conftest import RunCommand
from tests.cli.fake_llm import FakeBuild

UseEngine = Callable[..., FakeBuild]


def test_generate_answers_through_the_template(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine()

    result = run_command("generate", "-m", model, "Capital of France?")

    assert (result.code, result.out) == (0, "Paris.\n")
    assert build.prompts == ["[user:Capital of France?]"]
    assert build.params[0].temperature == 0


def test_generate_metrics_are_the_last_line_of_stderr(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine()

    result = run_command("generate", "-m", model, "x")

    pairs = dict(pair.split("=") for pair in result.err.splitlines()[-1].split())
    assert list(pairs) == [
        *("model_load_ms", "prompt_tokens", "new_tokens", "prefill_ms", "ttft_ms"),
        *("mean_tpot_ms", "decode_tokens_per_s", "finish_reason", "backend", "dtype"),
    ]
    assert (pairs["prompt_tokens"], pairs["new_tokens"]) == ("8", "7")
    assert (pairs["backend"], pairs["dtype"], pairs["finish_reason"]) == ("numpy", "f32", "stop")


def test_generate_json_is_one_object_and_nothing_else(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(["é"])

    result = run_command("generate", "-m", model, "--json", "x")

    facts = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert result.err == ""
    assert list(facts) == [
        *("text", "token_ids", "finish_reason", "model", "backend", "dtype", "metrics"),
    ]
    assert facts["text"] == "é"
    assert facts["token_ids"] == [0xC3, 0xA9, 256]
    assert facts["model"] == model
    assert list(facts["metrics"]) == [
        *("model_load_ms", "prompt_tokens", "new_tokens", "prefill_ms", "ttft_ms"),
        *("mean_tpot_ms", "decode_tokens_per_s"),
    ]
    assert facts["metrics"]["new_tokens"] == 3


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        pytest.param(["hello"], b"", "hello", id="argument"),
        pytest.param(["--prompt", "-hello"], b"", "-hello", id="option"),
        pytest.param([], b"piped\n", "piped", id="stdin"),
        pytest.param([], b"two\n\n", "two\n", id="one_newline_is_dropped"),
        pytest.param(["Sum up:"], "ünï\n".encode(), "Sum up:\n\nünï", id="both"),
        pytest.param(["hello"], b"\n", "hello", id="empty_stdin"),
    ],
)
def test_generate_prompt_is_joined_from_words_and_stdin(
    args: list[str],
    stdin: bytes,
    prompt: str,
    run_command: RunCommand,
    use_engine: UseEngine,
    model: str,
) -> None:
    build = use_engine()

    assert run_command("generate", "-m", model, "--raw", *args, stdin=stdin).code == 0

    assert build.prompts == [prompt]


@pytest.mark.parametrize(
    ("args", "has_template", "prompt"),
    [
        pytest.param([], True, "[user:x]", id="default_with_template"),
        pytest.param([], False, "x", id="default_without_template"),
        pytest.param(["--raw"], True, "x", id="raw"),
        pytest.param(["--chat"], True, "[user:x]", id="chat"),
        pytest.param(["--system", "be brief"], True, "[system:be brief][user:x]", id="system"),
    ],
)
def test_generate_chat_or_raw(
    args: list[str],
    has_template: bool,
    prompt: str,
    run_command: RunCommand,
    use_engine: UseEngine,
    model: str,
) -> None:
    build = use_engine(has_template=has_template)

    run_command("generate", "-m", model, *args, "x")

    assert build.prompts == [prompt]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        pytest.param([], "expected some text, got none", id="no_prompt"),
        pytest.param(["a", "b"], "put the prompt in quotes", id="no_quotes"),
        pytest.param(["x", "--prompt", "y"], "expected it once", id="two_prompts"),
        pytest.param(["x", "--raw", "--system", "y"], "expected none with --raw", id="system_raw"),
        pytest.param(["x", "--top-p", "0"], "--top-p: expected", id="top_p"),
        pytest.param(["x", "--temperature", "nan"], "temperature: expected", id="nan"),
        pytest.param(["x", "--max-tokens", "0"], "--max-tokens: expected", id="max_tokens"),
        pytest.param(["x", "--max-tokens", "9999"], "context of 400", id="context"),
        pytest.param(["x" * 500], "context of 400", id="long_prompt"),
        pytest.param(["x", "--dtype", "f31"], "f31", id="dtype"),
        pytest.param(["x", "--threads", "0"], "threads: expected", id="threads"),
    ],
)
def test_generate_input_that_cannot_be_served_ends_with_code_2(
    args: list[str], text: str, run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine()

    result = run_command("generate", "-m", model, *args)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert text in result.err


def test_generate_chat_without_a_template_is_refused(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(has_template=False)

    result = run_command("generate", "-m", model, "--chat", "x")

    assert result.code == 2
    assert "no chat template" in result.err


def test_generate_stdin_that_is_not_utf8_is_refused(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine()

    result = run_command("generate", "-m", model, stdin=b"\xff\xfe")

    assert result.code == 2
    assert "stdin: expected UTF-8" in result.err


def test_generate_default_length_gives_way_to_a_small_context(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["x" * 300], max_model_len=50)

    result = run_command("generate", "-m", model, "--raw", "0123456789")

    assert result.out == "x" * 40 + "\n"
    assert build.params[0].max_tokens == 40
    assert "finish_reason=length" in result.err


def test_generate_options_reach_the_request(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["one two END three"])

    result = run_command(
        *("generate", "--model", model, "x", "--max-tokens", "30", "--temperature", "0.5"),
        *("--top-p", "0.9", "--top-k", "7", "--min-p", "0.1", "--seed", "3", "--stop", "END"),
        *("--stop", "STOP", "--ignore-eos"),
    )

    params = build.params[0]
    assert result.out == "one two \n"
    assert (params.max_tokens, params.temperature, params.top_p) == (30, 0.5, 0.9)
    assert (params.top_k, params.min_p, params.seed) == (7, 0.1, 3)
    assert (params.stop, params.ignore_eos) == (("END", "STOP"), True)


def test_generate_device_options_reach_the_engine(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine()

    run_command("generate", "-m", model, "x", "--backend", "b", "--dtype", "f64", "--threads", "2")

    device = build.settings["device"]
    assert (device.backend, device.dtype, device.threads) == ("b", "f64", 2)


def test_generate_memory_and_drafts_reach_the_engine(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine()
    memory = ("--kv-cache-dtype", "f16", "--memory-fraction", "0.5", "--num-blocks", "70")
    drafts = ("--speculation", "ngram", "--num-speculative-tokens", "6")

    result = run_command("generate", "-m", model, "x", *memory, *drafts)

    assert result.code == 0, result.err
    cache, speculative = build.settings["cache"], build.settings["speculative"]
    assert (cache.kv_cache_dtype, cache.memory_fraction, cache.num_blocks) == ("f16", 0.5, 70)
    assert (speculative.speculation, speculative.num_speculative_tokens) == ("ngram", 6)


@pytest.mark.parametrize("is_json", [False, True])
def test_generate_ctrl_c_prints_what_there_is(
    is_json: bool, run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(["Paris is the capital."], interrupt_at=(5,))

    result = run_command("generate", "-m", model, "x", *(["--json"] if is_json else []))

    assert result.code == 130
    if is_json:
        assert json.loads(result.out)["finish_reason"] == "abort"
        assert json.loads(result.out)["text"] == "Paris"
    else:
        assert result.out == "Paris\n"
        assert "finish_reason=abort" in result.err


def test_generate_ctrl_c_twice_ends_at_once(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(["Paris is the capital."], interrupt_at=(5, 5))

    result = run_command("generate", "-m", model, "x")

    assert result.code == 130
    assert result.err.strip() == "error: interrupted"


def test_generate_engine_that_fails_ends_with_code_1(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(failing=["llm-1"])

    result = run_command("generate", "-m", model, "x")

    assert result.code == 1
    assert "logits are not finite" in result.err


def test_generate_without_a_model_pulls_the_default_once(
    run_command: RunCommand, use_engine: UseEngine, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []

    def pull(name: str, report: object) -> str:
        pulled.append(name)
        return model

    build = use_engine()
    monkeypatch.setattr(fetch, "locate", lambda name: None)
    monkeypatch.setattr(fetch, "pull", pull)

    result = run_command("generate", "x")

    assert pulled == [hub.DEFAULT_MODEL]
    assert build.settings["model"] == model
    assert result.err.startswith("smollm2-135m is not on this machine yet")


def test_generate_missing_file_ends_with_code_2(run_command: RunCommand) -> None:
    result = run_command("generate", "-m", "./no/such.gguf", "x")

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: [model] name: expected an existing file")
