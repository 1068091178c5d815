"""What is declared of cuBLASLt is what its header and library say, where extra cuda is there."""

import ctypes
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from pyvt.backends.cuda import cublas_path, native

CSRC = Path(__file__).resolve().parents[3] / "csrc"
LIBRARY = cublas_path()
HAS_HEADER = bool(LIBRARY) and (Path(LIBRARY).parents[1] / "include" / "cublasLt.h").exists()
NEEDS_CUBLAS = pytest.mark.skipif(
    not HAS_HEADER, reason="cuBLASLt is not here; pip install 'pyvt[cuda]' brings it"
)
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here")


def compiled(folder: Path, source: Path) -> subprocess.CompletedProcess[str]:
    """Compile a source against the header of the library."""
    includes = [CSRC, CSRC / "include", Path(LIBRARY).parents[1] / "include"]
    flags = [f"-I{include}" for include in includes]
    command = ["nvcc", "-std=c++17", *flags, str(source), "-o", str(folder / "names")]
    return subprocess.run(command, capture_output=True, text=True)


@NEEDS_CUBLAS
@NEEDS_NVCC
def test_declarations_are_those_of_the_header(tmp_path: Path) -> None:
    """Constants, sizes and signatures; the library has every function that is asked for."""
    done = compiled(tmp_path, CSRC / "tests" / "cublas_header.cpp")
    assert done.returncode == 0, done.stderr

    names = subprocess.run([tmp_path / "names"], check=True, capture_output=True, text=True)
    library = ctypes.CDLL(LIBRARY)

    assert "cublasLtMatmul" in names.stdout.split()
    assert not [name for name in names.stdout.split() if not hasattr(library, name)]


@NEEDS_CUBLAS
@NEEDS_NVCC
@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        ("kTransA = 3", "kTransA = 4"),
        ("uint64_t data[32]", "uint64_t data[31]"),
        ("const Algorithm* algorithm, void* workspace", "void* workspace"),
    ],
)
def test_another_declaration_does_not_compile(tmp_path: Path, was: str, is_now: str) -> None:
    (tmp_path / "cuda").mkdir()
    text = (CSRC / "cuda" / "cublas_lt_api.h").read_text()
    assert was in text
    (tmp_path / "cuda" / "cublas_lt_api.h").write_text(text.replace(was, is_now))
    source = tmp_path / "changed.cpp"
    checks = (CSRC / "tests" / "cublas_header.cpp").read_text()
    header = tmp_path / "cuda" / "cublas_lt_api.h"
    source.write_text(checks.replace('"cuda/cublas_lt_api.h"', f'"{header}"'))

    done = compiled(tmp_path, source)

    assert done.returncode != 0
    assert "static assertion failed" in done.stderr


@NEEDS_CUBLAS
@pytest.mark.skipif(
    find_spec("pyvt.backends.cuda._native") is None,
    reason="the CUDA module is not built; make cuda builds it",
)
def test_module_opens_the_library() -> None:
    """All functions are found; without a card it is the library that says why it cannot go on."""
    module = native()
    module.set_cublas_path(LIBRARY)

    reason = module.why_no_cublas()

    assert reason == "" or reason.startswith("cublasLtCreate: ")
