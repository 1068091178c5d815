import pytest

from pyvt.config.server import ServerConfig
from pyvt.errors import ConfigError
from pyvt.server.state import ServerState


@pytest.mark.parametrize("setting", ["tool_call_parser", "reasoning_parser"])
def test_unknown_parser_is_refused_with_the_names_that_there_are(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: no 'foo'; valid names: auto"):
        ServerState(config=ServerConfig(**{setting: "foo"}), names=("model",))


@pytest.mark.parametrize("name", ["auto", "none", "hermes"])
def test_known_parser_is_taken(name: str) -> None:
    assert ServerState(config=ServerConfig(tool_call_parser=name), names=("m",)).llm is None
