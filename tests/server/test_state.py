import pytest

from pyvt import other_names
from pyvt.config.server import ServerConfig
from pyvt.errors import ConfigError
from pyvt.server.answer.reasoning import REASONING_TAGS
from pyvt.server.state import ServerState
from pyvt.server.tool_parsers import TOOL_DIALECTS
from tests.server.conftest import Serve


@pytest.mark.parametrize("setting", ["tool_call_parser", "reasoning_parser"])
def test_unknown_parser_is_refused_with_the_names_that_there_are(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: no 'foo'; valid names: auto"):
        ServerState(config=ServerConfig(**{setting: "foo"}), names=("model",))


@pytest.mark.parametrize("name", ["auto", "none", "hermes"])
def test_known_parser_is_taken(name: str) -> None:
    assert ServerState(config=ServerConfig(tool_call_parser=name), names=("m",)).llm is None


@pytest.mark.parametrize("name", other_names.PARSERS["tool_call_parser"])
def test_tool_parser_by_vllms_name_is_the_one_of_ours(serve: Serve, name: str) -> None:
    state = serve(config={"tool_call_parser": name}).state

    dialect = state.speech(state.ready_llm().engine.input_processor).dialect

    assert dialect is TOOL_DIALECTS[other_names.PARSERS["tool_call_parser"][name]]


@pytest.mark.parametrize("name", other_names.PARSERS["reasoning_parser"])
def test_reasoning_parser_by_vllms_name_is_the_one_of_ours(serve: Serve, name: str) -> None:
    state = serve(config={"reasoning_parser": name}).state

    tags = state.speech(state.ready_llm().engine.input_processor).tags

    assert tags is REASONING_TAGS["think"]
