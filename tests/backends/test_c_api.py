"""libpyvt_ops: what it exports, and its ops called by ctypes and from a C program."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import DTYPES
from pyvt.testing.random_blocks import random_weight
from tests.backends.c_library import INVALID, OK, load, path, tensor

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    LIBRARY = path()


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return load()


def test_library_exports_each_op_and_nothing_of_cpp() -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm of binutils is not here")

    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}

    assert {name for name in names if not name.startswith("pyvt_")} == set()
    assert {f"pyvt_{op}" for op in _native.OPS} <= names


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_op_by_ctypes_gives_the_bits_of_the_module(library: ctypes.CDLL, dtype: str) -> None:
    rng = np.random.default_rng(1)
    numpy_dtype = DTYPES[dtype].numpy
    x = rng.standard_normal((5, 40), np.float32).astype(numpy_dtype)[:, ::-1][:, ::-1]
    weight = rng.standard_normal(40, np.float32).astype(numpy_dtype)
    out = np.empty_like(x)

    status = library.pyvt_rms_norm(
        ctypes.byref(tensor(library, dtype, out)),
        ctypes.byref(tensor(library, dtype, x)),
        ctypes.byref(tensor(library, dtype, weight)),
        ctypes.c_double(1e-6),
    )

    assert status == OK
    want = np.empty_like(x)
    _native.rms_norm(want, x, weight, 1e-6)
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["q8_0", "q4_k"])
def test_weight_of_blocks_is_multiplied_in_rows_and_in_tiles(
    library: ctypes.CDLL, name: str
) -> None:
    weight = random_weight(np.random.default_rng(2), DTYPES[name], 21, 512)
    x = np.random.default_rng(3).standard_normal((3, 512), np.float32)
    blocks = np.ascontiguousarray(weight.blocks)
    number = library.pyvt_dtype(name.encode())
    tiles = np.empty(
        library.pyvt_packed_bytes(number, ctypes.c_int64(21), ctypes.c_int64(512)), "u1"
    )
    rows = tensor(library, name, blocks, (21, 512))
    outs = [np.empty((3, 21), np.float32) for _ in range(2)]
    args = [ctypes.byref(tensor(library, "f32", x)), None, None, ctypes.c_char_p(b"q8")]

    statuses = [library.pyvt_pack_tiles(tiles.ctypes.data_as(ctypes.c_void_p), ctypes.byref(rows))]
    packed = tensor(library, name, tiles, (21, 512))
    for out, op, of in zip(
        outs, (library.pyvt_quant_linear, library.pyvt_packed_linear), (rows, packed), strict=True
    ):
        args[1] = ctypes.byref(of)
        statuses.append(op(ctypes.byref(tensor(library, "f32", out)), *args))

    assert statuses == [OK, OK, OK], library.pyvt_last_error()
    use_backend("cpu")
    want = ops.quant_linear(x, weight, act="q8")
    use_backend("numpy")
    assert [out.tobytes() for out in outs] == [want.tobytes()] * 2


def test_bad_arguments_give_a_code_and_a_text(library: ctypes.CDLL) -> None:
    x = np.ones((2, 8), np.int64)
    out = np.empty((2, 8), np.float32)
    of_out, of_x = tensor(library, "f32", out), tensor(library, "i64", x)
    of_blocks = tensor(library, "q8_0", np.zeros(34, "u1"), (1, 31))
    unknown = tensor(library, "f32", out)
    unknown.dtype = 99
    of_rank = tensor(library, "f32", out)
    of_rank.rank = 7
    of_size = tensor(library, "f32", out)
    of_size.shape[0] = of_size.shape[1] = 2**32
    calls = {
        b"dtype": lambda: library.pyvt_relu(ctypes.byref(of_out), ctypes.byref(of_x)),
        b"99": lambda: library.pyvt_relu(ctypes.byref(of_out), ctypes.byref(unknown)),
        b"rank": lambda: library.pyvt_relu(ctypes.byref(of_out), ctypes.byref(of_rank)),
        b"blocks of 32": lambda: library.pyvt_pack_tiles(None, ctypes.byref(of_blocks)),
        b"x": lambda: library.pyvt_relu(ctypes.byref(of_out), None),
        b"got none": lambda: library.pyvt_relu(None, None),
        b"2^63 elements": lambda: library.pyvt_relu(ctypes.byref(of_size), ctypes.byref(of_size)),
    }

    for words, call in calls.items():
        assert call() == INVALID, words
        assert words in library.pyvt_last_error()
    assert library.pyvt_dtype(b"q9") == -1


def test_c_program_compiles_and_runs(repo: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here")
    program = tmp_path / "program"
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command += [f"-I{repo / 'csrc' / 'include'}", str(repo / "csrc" / "tests" / "c_api_test.c")]
    command += ["-o", str(program), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}", "-lm"]

    subprocess.run(command, check=True)
    result = subprocess.run([str(program)], capture_output=True, text=True)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("libpyvt_ops runs from C on ")
