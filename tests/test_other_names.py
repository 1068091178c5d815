"""Names that people bring along from other engines get a hint that is true."""

import re
from dataclasses import fields

import pytest

from pyvt import other_names
from pyvt.cli.generate import generate
from pyvt.cli.main import COMMANDS, main
from pyvt.cli.serve import serve_command
from pyvt.config import engine_config
from pyvt.errors import ConfigError, RequestError
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams

SAMPLING_NAMES = {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("name", other_names.SETTINGS)
def test_settings_of_others_are_unknown_with_a_hint(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(other_names.SETTINGS[name])) as caught:
        LLM("nowhere", **{name: 2})

    assert caught.value.field == name


@pytest.mark.parametrize("name", other_names.SAMPLING)
def test_sampling_of_others_is_unknown_with_a_hint(name: str) -> None:
    with pytest.raises(RequestError, match=re.escape(other_names.SAMPLING[name])) as caught:
        SamplingParams(**{name: 2})  # type: ignore[arg-type]

    assert (caught.value.param, caught.value.code) == (name, "unknown_parameter")


def test_near_miss_of_a_sampling_setting_is_named() -> None:
    with pytest.raises(RequestError, match="did you mean 'temperature'"):
        SamplingParams(temprature=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="did you mean 'json'"):
        StructuredOutputsParams(jsn={})  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="settings by name"):
        SamplingParams(0.5)  # type: ignore[misc]


def test_names_that_hints_give_exist() -> None:
    hints = (*other_names.SETTINGS.values(), *other_names.SAMPLING.values())
    for name in re.findall(r"it is (\w+) here", " ".join(hints)):
        if name not in SAMPLING_NAMES:
            with pytest.raises(ConfigError) as caught:
                engine_config("x", **{name: object()})
            assert "is unknown" not in str(caught.value), name
    options = {
        opt for command in (generate, serve_command) for p in command.params for opt in p.opts
    }
    named = re.findall(r"--[a-z][a-z-]*", " ".join(other_names.OPTIONS.values()))
    assert set(named) <= options
    commands = re.findall(r"pyvt (\w+)", " ".join(other_names.COMMANDS.values()))
    assert set(commands) <= COMMANDS.keys()
    assert not other_names.COMMANDS.keys() & COMMANDS.keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "--n-predict", "5", "x"], "'--n-predict': it is --max-tokens here"),
        (["generate", "--max-new-tokens", "5", "x"], "it is --max-tokens here"),
        (["serve", "-ngl", "99"], "'-ngl': a model runs on one backend"),
        (["serve", "-t", "2"], "'-t': llama.cpp's -t is --threads"),
        (["serve", "-tp", "2"], "'-tp': an engine runs on one device"),
        (["serve", "--enable-auto-tool-choice"], "found out from the chat template; leave it out"),
        (["serve", "--model", "x"], "'--model': the model stands without an option"),
        (["serve", "-m", "x"], "'-m': the model stands without an option"),
        (["serve", "--enable-chunked-prefill"], "always prefilled in chunks"),
        (["serve", "--no-enable-chunked-prefill"], "always prefilled in chunks"),
        (["serve", "--generation-config", "auto"], "sampling defaults are those of the model's"),
        (["serve", "--uvicorn-log-level", "info"], "PYVT_LOG_LEVEL is the level"),
        (["serve", "--root-path", "/x"], "let the proxy in front take its path away"),
        (["serve", "--disable-log-requests"], "prompts are never logged"),
        (["serve", "--num-gpu-blocks-override", "9"], "it is --num-blocks here"),
        (["serve", "--tensor-parallel-size", "2"], "an engine runs on one device"),
        (["run", "smollm2-135m"], "no command 'run'; use 'pyvt chat -m MODEL'"),
    ],
)
def test_command_line_of_others_gets_a_hint(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    assert words in capsys.readouterr().err
