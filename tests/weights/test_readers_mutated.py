"""Readers under mutation: whatever the bytes, an error of ours or tensors inside the file."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.tensor.dtype import Q8_0
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.checkpoints import safetensors_bytes, write_gguf, write_safetensors
from pyvt.weights import open_model

A = np.arange(32, dtype=np.float32)
PACKED = QuantTensor(Q8_0, (2, 32), np.arange(68, dtype=np.uint8).reshape(2, 34))
METADATA = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": [1, 1],
    "tokenizer.ggml.tokens": ["a", "ß", "🙂", "longer"],
    "tokenizer.ggml.scores": [0.5, 1.5],
    "flag": True,
}
TENSORS = {"token_embd.weight": PACKED, "blk.0.attn_q.weight": A.reshape(8, 4), "b": A[:8]}
EDITS = [0, 1, 2, 3, 7, 31, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
mutations = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(path, METADATA, TENSORS).read_bytes()


@pytest.fixture(scope="module")
def st_content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("safetensors")
    tensors = {"lm_head.weight": A, "b": A[:8].astype(np.float16), "c": A[:3].astype(np.int8)}
    return (write_safetensors(folder, tensors, {}) / "model.safetensors").read_bytes()


def open_and_read_all(path: Path) -> str:
    """Open a model, read every byte of it and return "read", or the text of our own error."""
    content = path.read_bytes()
    try:
        model = open_model(path)
        for name in model.source.names():
            tensor = model.source.get(name)
            raw = (tensor.blocks if isinstance(tensor, QuantTensor) else tensor).tobytes()
            assert len(raw) == model.source.info(name).nbytes <= len(content)
            is_gathered = name.endswith(("q_proj.weight", "k_proj.weight"))
            assert is_gathered or raw in content
    except (CheckpointError, UnsupportedError) as error:
        return str(error)
    return "read"


def is_expected(end: str, path: Path) -> bool:
    return end == "read" or path.name in end


def write(folder: Path, kind: str, content: bytes) -> Path:
    (folder / "config.json").write_text("{}")
    path = folder / f"m.{kind}"
    path.unlink(missing_ok=True)  # a mapped file must not change under its views
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_every_truncation_is_an_error(
    kind: str, gguf_content: bytes, st_content: bytes, tmp_path: Path
) -> None:
    content = {"gguf": gguf_content, "safetensors": st_content}[kind]

    ends = [
        open_and_read_all(write(tmp_path, kind, content[:size])) for size in range(len(content))
    ]

    assert [size for size, end in enumerate(ends) if f"m.{kind}" not in end] == []
    assert open_and_read_all(write(tmp_path, kind, content)) == "read"


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@mutations
@given(data=st.data())
def test_flipped_bits_give_an_error_or_the_file(
    kind: str, data: st.DataObject, gguf_content: bytes, st_content: bytes, tmp_path: Path
) -> None:
    content = bytearray({"gguf": gguf_content, "safetensors": st_content}[kind])
    bits = st.integers(0, len(content) * 8 - 1)
    for bit in data.draw(st.lists(bits, min_size=1, max_size=4)):
        content[bit // 8] ^= 1 << bit % 8

    path = write(tmp_path, kind, bytes(content))

    assert is_expected(open_and_read_all(path), path)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
@mutations
@given(data=st.data())
def test_edited_numbers_give_an_error_or_the_file(
    kind: str, data: st.DataObject, gguf_content: bytes, st_content: bytes, tmp_path: Path
) -> None:
    content = bytearray({"gguf": gguf_content, "safetensors": st_content}[kind])
    form = data.draw(st.sampled_from(["<I", "<Q"]))
    width = struct.calcsize(form)
    place = data.draw(st.integers(0, len(content) - width))
    value = data.draw(st.sampled_from(EDITS) | st.integers(0, len(content) + 64))
    content[place : place + width] = struct.pack(form, value % (1 << 8 * width))

    path = write(tmp_path, kind, bytes(content))

    assert is_expected(open_and_read_all(path), path)


@mutations
@given(
    shape=st.lists(st.integers(-1, 9) | st.sampled_from(EDITS), max_size=3),
    offsets=st.lists(st.integers(0, 64) | st.sampled_from(EDITS), max_size=3),
    dtype=st.sampled_from(["F32", "F16", "I8", "BF16", "F64", "", "f32"]),
    rest=st.integers(0, 64),
)
def test_any_header_entry_gives_an_error_or_the_file(
    shape: list[int], offsets: list[int], dtype: str, rest: int, tmp_path: Path
) -> None:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    content = safetensors_bytes({"a": entry}, bytes(rest))

    path = write(tmp_path, "safetensors", content)

    assert is_expected(open_and_read_all(path), path)


@mutations
@given(text=st.text(max_size=40) | st.binary(max_size=40))
def test_any_config_gives_an_error_or_an_object(text: str | bytes, tmp_path: Path) -> None:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({}))
    path = tmp_path / "config.json"
    path.write_bytes(raw)

    try:
        end = "read" if isinstance(open_model(tmp_path).config, dict) else "no object"
    except CheckpointError as error:
        end = str(error)

    assert is_expected(end, path)
