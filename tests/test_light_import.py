"""What is imported before anything is asked for; counted, since time depends on the machine."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    *("numpy", "ml_dtypes", "tokenizers", "jinja2", "gguf", "safetensors", "huggingface_hub"),
    *("rich", "asyncio", "pyvt.ops", "pyvt.llm", "pyvt.engine", "pyvt.testing"),
}
IMPORT = "import pyvt"
HELP = "from pyvt.cli.main import main; assert main(['--help']) == 0"
VERSION = "from pyvt.cli.main import main; assert main(['--version']) == 0"
BAD_COMMAND = "from pyvt.cli.main import main; assert main(['nonsense']) == 2"


def _new_modules(code: str) -> set[str]:
    """Return the modules that ``code`` adds to those of a bare interpreter."""
    script = (
        "import sys, json; before = set(sys.modules)\n"
        f"{code}\n"
        "print('\\n' + json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        pytest.param(IMPORT, 20, id="import_pyvt"),
        pytest.param(HELP, 120, id="help"),
        pytest.param(VERSION, 120, id="version"),
        pytest.param(BAD_COMMAND, 120, id="bad_command"),
    ],
)
def test_start_loads_few_modules_and_none_that_is_heavy(code: str, limit: int) -> None:
    modules = _new_modules(code)

    assert modules & HEAVY == set()
    assert len(modules) <= limit


def test_ops_load_numpy_and_no_other_library() -> None:
    modules = _new_modules("import pyvt.ops")

    assert "numpy" in modules
    assert modules & {"tokenizers", "jinja2", "gguf", "safetensors", "click", "rich"} == set()
    assert {name for name in modules if name.startswith("pyvt.")} & {
        *("pyvt.cli", "pyvt.engine", "pyvt.models", "pyvt.weights", "pyvt.testing")
    } == set()


def test_engine_loads_no_library_of_chats_and_grammars_before_there_are_some() -> None:
    modules = _new_modules("import pyvt.engine.build")

    assert "tokenizers" in modules
    assert modules & {"jinja2", "llguidance", "asyncio", "_hashlib", "importlib.metadata"} == set()
