"""Fixtures that all tests share."""

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# A busy machine takes long for an example now and then.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

REPO = Path(__file__).resolve().parent.parent

# The folder of another build of the compiled CPU module, which is then tested in this process in
# place of the installed one; set by tests/native_builds.py.
NATIVE_DIR = "PYVT_TEST_NATIVE"
# Likewise those of the CUDA backend, on its emulator and by nvcc.
EMULATED_DIR, CUDA_DIR = "PYVT_TEST_EMULATED", "PYVT_TEST_CUDA"

# What a test needs, by its marker.
BACKEND_OF_MARKER = {"native": "cpu", "emulated": "cuda-emu", "cuda": "cuda"}


def _load_native(folder: Path, package: str, name: str) -> None:
    (path,) = folder.glob(f"{name}.*.so")
    spec = importlib.util.spec_from_file_location(f"{package}.{name}", path)
    assert spec is not None, f"{path} is no module"
    assert spec.loader is not None, f"{path} is no module"
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"{package}.{name}"] = module
    spec.loader.exec_module(module)
    setattr(importlib.import_module(package), name, module)


if NATIVE_DIR in os.environ:
    _load_native(Path(os.environ[NATIVE_DIR]), "pyvt.backends.cpu", "_native")
if EMULATED_DIR in os.environ:
    _load_native(Path(os.environ[EMULATED_DIR]), "pyvt.backends.cuda", "_native_emu")
if CUDA_DIR in os.environ:
    _load_native(Path(os.environ[CUDA_DIR]), "pyvt.backends.cuda", "_native")


def pytest_configure() -> None:
    """Let Ctrl-C work in tests of it: a shell starts its background jobs with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked for a backend that does not load, with the reason."""
    for marker, backend in BACKEND_OF_MARKER.items():
        if item.get_closest_marker(marker) is not None:
            from pyvt import backends

            reason = backends.why_not(backend)
            if reason is not None:
                pytest.skip(f"{backend} backend: {reason}")


@pytest.fixture(scope="module", autouse=True)
def reference_again() -> Iterator[None]:
    """After a module of tests the reference is selected again, whatever engines it made."""
    yield
    if "pyvt.dispatch" in sys.modules:
        sys.modules["pyvt.dispatch"].use_backend("numpy")


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture(scope="session")
def goldens_root() -> Path:
    """The folder of committed goldens."""
    return REPO / "parity" / "goldens"


def _fixture_path(name: str, command: str = "make fixtures") -> Path:
    path = REPO / ".fixtures" / name
    assert path.exists(), f"{path} is missing: run {command}"
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF of q4_1 blocks."""
    return _fixture_path("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir() -> Path:
    """The folder of Qwen3's tokenizer.json and tokenizer_config.json."""
    return _fixture_path("qwen3-tokenizer")


@pytest.fixture(scope="session")
def chat_templates_path() -> Path:
    """The chat templates of many public models; for tests marked slow."""
    return _fixture_path("chat-templates.json", "python -m tests.fixtures --all")


@pytest.fixture(scope="session")
def schema_suite_path() -> Path:
    """Groups of JSON-Schema-Test-Suite, draft 2020-12; for tests marked slow."""
    return _fixture_path("json-schema-suite.json", "python -m tests.fixtures --all")


@pytest.fixture(scope="session")
def tool_schemas_path() -> Path:
    """Tools that people have described, and calls of them; for tests marked slow."""
    return _fixture_path("tool-schemas.json", "python -m tests.fixtures --all")
