"""Broken model files, one fault each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError, PyvtError, UnsupportedError
from pyvt.testing.checkpoints import (
    ARRAY,
    BOOL,
    I32,
    U8,
    U16,
    U32,
    Typed,
    gguf_bytes,
    gguf_file,
    gguf_info,
    gguf_pair,
    gguf_string,
    safetensors_bytes,
    write_gguf,
    write_safetensors,
)

Build = Callable[[Path], Path]
F32_ID, Q8_0_ID, Q8_K_ID = 0, 8, 15
A = np.arange(8, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class BadFile:
    """One fault: how to write it, what the error says, and the file and tensor that it names."""

    id: str
    build: Build
    text: str
    file: str
    tensor: str | None = None
    error: type[PyvtError] = CheckpointError


def entry(shape: Any = (4,), offsets: Any = (0, 16), dtype: Any = "F32") -> dict[str, Any]:
    """Return one tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def st(header: Any, data: bytes = b"", *, length: int | None = None, pad: int = 0) -> Build:
    """Write a folder of one safetensors file; ``pad`` makes it longer without using the disk."""
    return raw_st(safetensors_bytes(header, data, length=length), pad=pad)


def raw_st(content: bytes, *, pad: int = 0) -> Build:
    """Write a folder of a config and a model.safetensors of any content."""

    def build(folder: Path) -> Path:
        (folder / "config.json").write_text("{}")
        _write(folder / "model.safetensors", content, pad)
        return folder

    return build


def config(content: bytes, *, name: str = "config.json", pad: int = 0) -> Build:
    """Write a folder of sound weights and one broken JSON file."""

    def build(folder: Path) -> Path:
        write_safetensors(folder, {"a": A}, {})
        _write(folder / name, content, pad)
        return folder

    return build


def index(weight_map: Any, *, key: str = "weight_map") -> Build:
    """Write a folder of two sound shards, of tensors a and b, and an index of that map."""

    def build(folder: Path) -> Path:
        write_safetensors(folder, {"a": A, "b": A}, {}, shards=2)
        (folder / "model.safetensors.index.json").write_text(json.dumps({key: weight_map}))
        return folder

    return build


def shards(change: Callable[[Path], Any], *, has_index: bool = True) -> Build:
    """Write a folder of two sound shards and change something in it."""

    def build(folder: Path) -> Path:
        write_safetensors(folder, {"a": A, "b": A}, {}, shards=2)
        if not has_index:
            (folder / "model.safetensors.index.json").unlink()
        change(folder)
        return folder

    return build


def late(make: Callable[[], Build]) -> Build:
    """Put off making a large content until it is written."""
    return lambda folder: make()(folder)


def gguf(content: bytes, *, pad: int = 0) -> Build:
    """Write one GGUF file."""

    def build(folder: Path) -> Path:
        _write(folder / "model.gguf", content, pad)
        return folder / "model.gguf"

    return build


def pairs(*encoded: bytes, **counts: Any) -> Build:
    """Write a GGUF file of encoded metadata pairs and no tensor."""
    return gguf(gguf_file(encoded, **counts))


def infos(*encoded: bytes, data: bytes = bytes(64), **counts: Any) -> Build:
    """Write a GGUF file of encoded tensor infos and 64 bytes of data."""
    return gguf(gguf_file([gguf_pair("general.architecture", "qwen3")], encoded, data, **counts))


def llama(metadata: dict[str, Any], name: str, num_rows: int) -> Build:
    """Write a llama GGUF of one tensor."""
    tensor = np.zeros((num_rows, 2), np.float32)
    return gguf(gguf_bytes({"general.architecture": "llama", **metadata}, {name: tensor}))


def parts(change: Callable[[Path], Any]) -> Build:
    """Write a GGUF in two parts, change something, and return the first part."""

    def build(folder: Path) -> Path:
        metadata = {"general.architecture": "qwen3"}
        first = write_gguf(folder / "m.gguf", metadata, {"a": A, "b": A}, splits=2)
        changed = change(folder)
        return changed if isinstance(changed, Path) else first

    return build


def _write(path: Path, content: bytes, pad: int) -> None:
    path.write_bytes(content)
    if pad:
        with path.open("r+b") as file:
            file.truncate(len(content) + pad)


def _rewrite_part(no: int, count: int, total: int, name: str) -> Callable[[Path], None]:
    split = {
        "split.no": Typed(U16, no),
        "split.count": Typed(U16, count),
        "split.tensors.count": Typed(I32, total),
    }
    return lambda folder: (folder / "m-00002-of-00002.gguf").write_bytes(
        gguf_bytes(split, {name: A})
    )


def _cut(name: str, nbytes: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-nbytes])

    return change


def _link_outside(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    outside = folder.parent / f"{folder.name}-outside.safetensors"
    shard.rename(outside)
    shard.symlink_to(outside)


def _copy_gguf(folder: Path) -> Path:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(folder / name, {"general.architecture": "qwen3"}, {"a": A})
    return folder


def _wrong_number(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / FIRST).rename(folder / "x-00003-of-00002.safetensors")


def _stale_index(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"b": FIRST, "a": "other.st"}}))


def _same_tensor_in_both(folder: Path) -> None:
    shard = safetensors_bytes({"a": entry((4,)), "b": entry((4,), (16, 32))}, bytes(32))
    (folder / "model-00002-of-00002.safetensors").write_bytes(shard)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ST, GGUF, INDEX = "model.safetensors", "model.gguf", "model.safetensors.index.json"
HUGE, MOST = 33 << 20, 3 << 18

SAFETENSORS = (
    BadFile("empty", raw_st(b""), "at least 8 bytes", ST),
    BadFile("seven_bytes", raw_st(bytes(7)), "at least 8 bytes", ST),
    BadFile("header_past_end", st({}, length=1 << 20), "a header of at most", ST),
    BadFile("header_2_62", st({}, length=1 << 62), "a header of at most", ST),
    BadFile("header_2_64", st({}, length=(1 << 64) - 1), "a header of at most", ST),
    BadFile("header_33_mib", st("", length=HUGE, pad=HUGE), "got 34603008 bytes", ST),
    BadFile("header_short", st({"a": entry()}, bytes(16), length=20), "expected JSON", ST),
    BadFile("header_no_json", st("model"), "expected JSON", ST),
    BadFile("header_not_utf8", st(b'{"\xff": 1}'), "expected UTF-8", ST),
    BadFile("header_utf16", st("{}".encode("utf-16")), "expected UTF-8", ST),
    BadFile("header_list", st("[]"), "expected a JSON object, got list", ST),
    BadFile("header_nested", st("[" * 100_000), "at most 64 levels", ST),
    BadFile("header_nested_values", st('{"a":' * 70 + "1" + "}" * 70), "at most 64 levels", ST),
    BadFile(
        "header_many_values", late(lambda: st("[" + "[]," * 2_000_000)), "1000000 JSON values", ST
    ),
    BadFile(
        "header_most_values",
        late(lambda: st(f'{{"a": [{"[]," * 480_000} 1]}}')),
        "object of",
        ST,
        "a",
    ),
    BadFile("header_nan", st('{"a": NaN}'), "finite numbers, got NaN", ST),
    BadFile("header_long_number", st('{"a": ' + "9" * 5000 + "}"), "expected JSON", ST),
    BadFile("name_twice", st('{"a": {}, "a": {}}'), "once, got 'a' twice", ST),
    BadFile("key_twice", st('{"a": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' twice", ST),
    BadFile("metadata_number", st({"__metadata__": {"a": 1}}), "__metadata__ of strings", ST),
    BadFile("entry_list", st({"a": []}), "an object of", ST, "a"),
    BadFile("entry_no_dtype", st({"a": {"shape": [], "data_offsets": []}}), "an object", ST, "a"),
    BadFile("entry_more_keys", st({"a": entry() | {"b": 1}}), "an object of", ST, "a"),
    BadFile("dtype_unknown", st({"a": entry(dtype="F31")}), "dtype of F64, F32", ST, "a"),
    BadFile("dtype_number", st({"a": entry(dtype=1)}), "dtype of F64, F32", ST, "a"),
    BadFile("dtype_wrong", st({"a": entry(dtype="F16")}, bytes(16)), "8 bytes of f16", ST, "a"),
    BadFile("shape_negative", st({"a": entry([-4])}), "a shape of at most", ST, "a"),
    BadFile("shape_float", st({"a": entry([4.0])}), "a shape of at most", ST, "a"),
    BadFile("shape_bool", st({"a": entry([True])}), "a shape of at most", ST, "a"),
    BadFile("shape_string", st({"a": entry("4")}), "a shape of at most", ST, "a"),
    BadFile("shape_rank", st({"a": entry([1] * 9)}), "a shape of at most 8", ST, "a"),
    BadFile("shape_2_62", st({"a": entry([1 << 62])}), "elements, got shape", ST, "a"),
    BadFile("shape_overflow", st({"a": entry([1 << 32, 1 << 32])}), "elements, got", ST, "a"),
    BadFile("shape_hidden_by_0", st({"a": entry([0, 1 << 62])}), "elements, got", ST, "a"),
    BadFile("shape_2_80", st({"a": entry([1 << 80])}), "a shape of at most", ST, "a"),
    BadFile("offsets_reversed", st({"a": entry(offsets=(16, 0))}), "[begin, end]", ST, "a"),
    BadFile("offsets_three", st({"a": entry(offsets=(0, 1, 2))}), "[begin, end]", ST, "a"),
    BadFile("offsets_null", st({"a": entry(offsets=None)}), "[begin, end]", ST, "a"),
    BadFile("offsets_size", st({"a": entry(offsets=(0, 8))}, bytes(8)), "16 bytes", ST, "a"),
    BadFile("past_end", st({"a": entry()}, bytes(15)), "truncated", ST, "a"),
    BadFile(
        "offset_2_62",
        st({"a": entry(offsets=(1 << 62, (1 << 62) + 16))}, bytes(16)),
        "inside the file",
        ST,
        "a",
    ),
    BadFile(
        "overlap",
        st({"a": entry(), "b": entry(offsets=(8, 24))}, bytes(24)),
        "an overlap",
        ST,
        "b",
    ),
    BadFile("gap", st({"a": entry(offsets=(4, 20))}, bytes(20)), "a gap before it", ST, "a"),
    BadFile("rest", st({"a": entry()}, bytes(17)), "the data to end at byte", ST),
    BadFile(
        "two_names_of_one",
        st({"lm_head.x": entry(), "model.lm_head.x": entry(offsets=(16, 32))}, bytes(32)),
        "once, got it as 'model.lm_head.x'",
        ST,
        "lm_head.x",
    ),
)

SHARDS = (
    BadFile("no_weight_map", index({}, key="weights"), "a weight_map", INDEX),
    BadFile("weight_map_list", index([FIRST]), "a weight_map", INDEX),
    BadFile("shard_number", index({"a": 1}), "a file name, got 1", INDEX, "a"),
    BadFile("shard_parent", index({"a": f"../{FIRST}"}), "plain file name", INDEX, "a"),
    BadFile("shard_absolute", index({"a": "/etc/passwd"}), "plain file name", INDEX, "a"),
    BadFile("shard_dots", index({"a": ".."}), "plain file name", INDEX, "a"),
    BadFile("shard_backslash", index({"a": "..\\x"}), "plain file name", INDEX, "a"),
    BadFile("shard_nul", index({"a": "a\0b"}), "plain file name", INDEX, "a"),
    BadFile("shard_long", index({"a": "x" * 5000}), "plain file name", INDEX, "a"),
    BadFile("shard_unnamed", shards(_stale_index), "no such file", "other.st", "a"),
    BadFile("shard_swapped", index({"a": SECOND, "b": FIRST}), "index is stale", SECOND, "a"),
    BadFile("tensor_nowhere", index({"c": FIRST, "b": SECOND}), "index is stale", FIRST, "c"),
    BadFile("shard_missing", shards(lambda f: (f / SECOND).unlink()), "no such", SECOND, "b"),
    BadFile("shard_truncated", shards(_cut(SECOND, 1)), "truncated", SECOND, "b"),
    BadFile("shard_emptied", shards(lambda f: _write(f / FIRST, b"", 0)), "at least 8", FIRST),
    BadFile("shard_link_outside", shards(_link_outside), "inside its folder", SECOND),
    BadFile("tensor_in_two_shards", shards(_same_tensor_in_both), "'a' once", SECOND, "a"),
    BadFile(
        "set_incomplete",
        shards(lambda f: (f / FIRST).unlink(), has_index=False),
        "no such file",
        FIRST,
    ),
    BadFile(
        "set_number",
        shards(_wrong_number, has_index=False),
        "a part of 1 to 2",
        "x-00003-of-00002.safetensors",
    ),
)

FOLDERS = (
    BadFile("nothing", lambda f: f / "absent", "got nothing there", "absent"),
    BadFile("nul", lambda f: f / "a\0b", "got nothing there", "a\\x00b"),
    BadFile("long_path", lambda f: f / ("x" * 300), "too long", "xxx"),
    BadFile("empty_folder", lambda f: f, "got neither", ""),
    BadFile("two_ggufs", _copy_gguf, "got a.gguf, b.gguf", ""),
    BadFile(
        "other_suffix", lambda f: config(b"{}")(f) / "config.json", "another kind", "config.json"
    ),
    BadFile(
        "no_config",
        lambda f: (raw_st(safetensors_bytes({}))(f) / "config.json").unlink() or f,
        "the model's config",
        "config.json",
    ),
    BadFile("config_empty", config(b""), "expected JSON", "config.json"),
    BadFile("config_list", config(b"[]"), "a JSON object", "config.json"),
    BadFile("config_nan", config(b'{"a": NaN}'), "finite numbers", "config.json"),
    BadFile("config_infinite", config(b'{"a": 1e999}'), "finite numbers", "config.json"),
    BadFile("config_not_utf8", config(b'{"a": "\xff"}'), "UTF-8", "config.json"),
    BadFile("config_twice", config(b'{"a": 1, "a": 2}'), "'a' twice", "config.json"),
    BadFile("config_surrogate", config(b'{"a": "\\ud800"}'), "expected JSON", "config.json"),
    BadFile("config_nested", config(b"[" * 100_000), "64 levels", "config.json"),
    BadFile("config_33_mib", config(b"{}", pad=HUGE), "at most 33554432", "config.json"),
    BadFile(
        "config_folder",
        lambda f: (config(b"{}")(f) / "generation_config.json").mkdir() or f,
        "no regular file",
        "generation_config.json",
    ),
    BadFile(
        "template_number",
        config(b'{"chat_template": 1}', name="tokenizer_config.json"),
        "chat_template a string",
        "tokenizer_config.json",
    ),
    BadFile(
        "template_unnamed",
        config(b'{"chat_template": [{"template": ""}]}', name="tokenizer_config.json"),
        "a list of name and template",
        "tokenizer_config.json",
    ),
    BadFile("tokenizer_not_utf8", config(b"\xff", name="tokenizer.json"), "UTF", "tokenizer.json"),
)

_ARCH = gguf_pair("general.architecture", "qwen3")
_KEY = gguf_string("k")


def _number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


def _array(kind: int, count: int, items: bytes = b"") -> bytes:
    return _KEY + _number(ARRAY, 4) + _number(kind, 4) + _number(count) + items


METADATA = (
    BadFile("empty", gguf(b""), "as the first bytes", GGUF),
    BadFile("magic", gguf(b"GGML" + bytes(60)), "it is no GGUF file", GGUF),
    BadFile("magic_only", gguf(b"GGUF"), "4 bytes of the version", GGUF),
    BadFile("version_1", pairs(version=1), "version 2 or 3, got 1", GGUF),
    BadFile("version_4", pairs(version=4), "version 2 or 3, got 4", GGUF),
    BadFile("big_endian", pairs(version=3 << 24), "is big-endian", GGUF),
    BadFile("pairs_2_63", pairs(_ARCH, num_pairs=1 << 63), "metadata pairs", GGUF),
    BadFile(
        "pairs_one_more",
        pairs(_ARCH, num_pairs=2),
        "1 to 1024 bytes of a metadata key, got 0",
        GGUF,
    ),
    BadFile("tensors_2_62", pairs(_ARCH, num_tensors=1 << 62), "tensors, by the bytes", GGUF),
    BadFile("key_2_40", pairs(gguf_string("k", length=1 << 40)), "a metadata key", GGUF),
    BadFile("key_past_end", pairs(gguf_string("k", length=900)), "a metadata key", GGUF),
    BadFile("key_not_utf8", pairs(gguf_pair(b"\xff", 1)), "UTF-8 in a metadata key", GGUF),
    BadFile("key_twice", pairs(_ARCH, _ARCH), "'general.architecture' twice", GGUF),
    BadFile("value_type_13", pairs(_KEY + _number(13, 4) + bytes(8)), "value type of 0", GGUF),
    BadFile(
        "string_2_40",
        pairs(_KEY + _number(8, 4) + gguf_string("", length=1 << 40)),
        "of the value of 'k'",
        GGUF,
    ),
    BadFile(
        "string_2_64",
        pairs(_KEY + _number(8, 4) + gguf_string("", length=(1 << 64) - 1)),
        "of the value of 'k'",
        GGUF,
    ),
    BadFile(
        "string_past_end",
        pairs(_KEY + _number(8, 4) + gguf_string("text", length=500)),
        "the file is truncated",
        GGUF,
    ),
    BadFile("string_not_utf8", pairs(gguf_pair("k", b"\xff")), "UTF-8 in the value", GGUF),
    BadFile(
        "bool_2",
        pairs(
            gguf_pair("k", Typed(U8, 2)).replace(_number(U8, 4) + b"\2", _number(BOOL, 4) + b"\2")
        ),
        "booleans of 0 or 1",
        GGUF,
    ),
    BadFile("array_2_62", pairs(_array(U32, 1 << 62)), "at most", GGUF),
    BadFile("array_strings_2_62", pairs(_array(8, 1 << 62)), "at most", GGUF),
    BadFile("array_of_arrays", pairs(_array(ARRAY, 1, bytes(12))), "array of arrays", GGUF),
    BadFile("array_type_99", pairs(_array(99, 1, bytes(8))), "value type of 0 to 12", GGUF),
    BadFile(
        "array_item_2_40",
        pairs(_array(8, 2, gguf_string("a") + _number(1 << 40))),
        "item 1 of 'k'",
        GGUF,
    ),
    BadFile(
        "array_item_cut",
        gguf(gguf_file([_array(8, 2, gguf_string("a" * 8))])[:-24]),
        "item 1 of 'k' inside",
        GGUF,
    ),
    BadFile("array_not_utf8", pairs(gguf_pair("k", [b"a", b"\xff"])), "in item 1 of 'k'", GGUF),
    BadFile(
        "array_too_many",
        gguf(gguf_file([_array(U8, (1 << 21) + 1)]), pad=HUGE),
        "at most 2097152 items",
        GGUF,
    ),
    BadFile(
        "header_33_mib",
        gguf(gguf_file([_KEY + _number(8, 4) + _number(HUGE)]), pad=HUGE),
        "0 to 33554432 bytes",
        GGUF,
    ),
    BadFile(
        "header_past_33_mib",
        gguf(gguf_file([_KEY + _number(8, 4) + _number(32 << 20)]), pad=HUGE),
        "that a header may have",
        GGUF,
    ),
    BadFile(
        "array_most_strings",
        late(lambda: pairs(_array(8, MOST, gguf_string("ab") * MOST))),
        "general.",
        GGUF,
    ),
    BadFile(
        "wide_string",
        late(lambda: pairs(gguf_pair("k", "\U0001f600" + "a" * (31 << 20)))),
        "general.",
        GGUF,
    ),
    BadFile("alignment_0", pairs(gguf_pair("general.alignment", 0)), "a power of two", GGUF),
    BadFile("alignment_3", pairs(gguf_pair("general.alignment", 3)), "a power of two", GGUF),
    BadFile("alignment_24", pairs(gguf_pair("general.alignment", 24)), "a power of two", GGUF),
    BadFile("alignment_2_30", pairs(gguf_pair("general.alignment", 1 << 30)), "from 8", GGUF),
    BadFile("alignment_text", pairs(gguf_pair("general.alignment", "32")), "from 8", GGUF),
    BadFile("no_architecture", pairs(), "general.architecture", GGUF),
    BadFile("architecture_number", pairs(gguf_pair("general.architecture", 1)), "a string", GGUF),
    BadFile(
        "template_number",
        pairs(_ARCH, gguf_pair("tokenizer.chat_template", 1)),
        "chat_template a string",
        GGUF,
    ),
)

TENSORS = (
    BadFile("dims_5", infos(gguf_info("a", (1,) * 5, F32_ID, 0)), "at most 4 dims", GGUF, "a"),
    BadFile("dims_1e6", infos(gguf_info("a", (1,), 0, 0, rank=10**6)), "at most 4", GGUF, "a"),
    BadFile("dims_2_32", infos(gguf_info("a", (1,), 0, 0, rank=2**32 - 1)), "most 4", GGUF, "a"),
    BadFile("dim_0", infos(gguf_info("a", (4, 0), F32_ID, 0)), "dims of 1 to", GGUF, "a"),
    BadFile("dim_2_62", infos(gguf_info("a", (1 << 62,), F32_ID, 0)), "dims of 1", GGUF, "a"),
    BadFile("dim_2_63", infos(gguf_info("a", (1 << 63,), F32_ID, 0)), "dims of 1", GGUF, "a"),
    BadFile(
        "dims_wrap", infos(gguf_info("a", (1 << 32, 1 << 32, 4), 0, 0)), "dims of 1", GGUF, "a"
    ),
    BadFile("type_200", infos(gguf_info("a", (4,), 200, 0)), "type number 200", GGUF, "a"),
    BadFile("type_removed", infos(gguf_info("a", (4,), 4, 0)), "type number 4", GGUF, "a"),
    BadFile(
        "type_unread",
        infos(gguf_info("a", (256,), Q8_K_ID, 0)),
        "got q8_k",
        GGUF,
        None,
        UnsupportedError,
    ),
    BadFile("row_of_33", infos(gguf_info("a", (33,), Q8_0_ID, 0)), "multiple of 32", GGUF, "a"),
    BadFile("row_of_none", infos(gguf_info("a", (), Q8_0_ID, 0)), "multiple of 32", GGUF, "a"),
    BadFile("past_end", infos(gguf_info("a", (17,), F32_ID, 0)), "truncated", GGUF, "a"),
    BadFile("offset_past_end", infos(gguf_info("a", (4,), 0, 64)), "inside the file", GGUF, "a"),
    BadFile("offset_2_63", infos(gguf_info("a", (4,), 0, 1 << 63)), "inside the file", GGUF, "a"),
    BadFile("offset_odd", infos(gguf_info("a", (4,), 0, 4)), "a multiple of 32", GGUF, "a"),
    BadFile(
        "overlap",
        infos(gguf_info("a", (16,), 0, 0), gguf_info("b", (4,), 0, 32)),
        "an overlap with 'a'",
        GGUF,
        "b",
    ),
    BadFile(
        "same_place",
        infos(gguf_info("a", (8,), 0, 0), gguf_info("b", (8,), 0, 0)),
        "an overlap with 'a'",
        GGUF,
        "b",
    ),
    BadFile(
        "name_twice",
        infos(gguf_info("a", (4,), 0, 0), gguf_info("a", (4,), 0, 32)),
        "the same name twice",
        GGUF,
        "a",
    ),
    BadFile(
        "most_tensors",
        late(lambda: infos(*(gguf_info(f"{i:05x}", (1,), 0, 0) for i in range(1 << 15)))),
        "overlap",
        GGUF,
        "00001",
    ),
    BadFile(
        "tensors_too_many",
        late(lambda: infos(*[gguf_info("a", (1,), 0, 0)] * ((1 << 15) + 1))),
        "at most 32768",
        GGUF,
    ),
    BadFile("name_2_40", infos(gguf_string("a", length=1 << 40) + bytes(32)), "name", GGUF),
    BadFile("name_not_utf8", infos(gguf_info(b"\xff", (4,), 0, 0)), "UTF-8 in a tensor", GGUF),
    BadFile(
        "infos_cut",
        gguf(gguf_file([_ARCH, gguf_info("a", (4,), 0, 0)[:20]], num_pairs=1, num_tensors=1)),
        "8 bytes of the offset",
        GGUF,
        "a",
    ),
    BadFile("no_heads", llama({}, "blk.0.attn_q.weight", 4), "llama.attention.head_count", GGUF),
    BadFile(
        "heads_text",
        llama({"llama.attention.head_count": "2"}, "blk.0.attn_q.weight", 4),
        "a positive llama.attention.head_count",
        GGUF,
    ),
    BadFile(
        "heads_of_other_layers",
        llama({"llama.attention.head_count": [2]}, "blk.1.attn_q.weight", 4),
        "for layer 1",
        GGUF,
    ),
    BadFile(
        "heads_odd",
        llama({"llama.attention.head_count": 2}, "blk.0.attn_k.weight", 6),
        "rows of 2 heads",
        GGUF,
        "blk.0.attn_k.weight",
    ),
    BadFile(
        "fused_rows",
        llama(
            {"llama.attention.head_count": 2, "llama.attention.key_length": 2},
            "blk.0.attn_qkv.weight",
            11,
        ),
        "12 rows of q, k, v",
        GGUF,
        "blk.0.attn_qkv.weight",
    ),
)

_PART_2 = "m-00002-of-00002.gguf"
PARTS = (
    BadFile("part_2_missing", parts(lambda f: (f / _PART_2).unlink()), "no such file", _PART_2),
    BadFile(
        "part_1_missing",
        parts(lambda f: (f / "m-00001-of-00002.gguf").unlink() or f),
        "no such file",
        "m-00001-of-00002.gguf",
    ),
    BadFile("part_cut", parts(_cut(_PART_2, 1)), "truncated", _PART_2, "b"),
    BadFile(
        "part_renamed",
        parts(lambda f: (f / "m-00001-of-00002.gguf").rename(f / "m.gguf")),
        "ends in -00001-of-0000N.gguf",
        "m.gguf",
    ),
    BadFile("part_number", parts(_rewrite_part(0, 2, 2, "b")), "expected split.no 1", _PART_2),
    BadFile("part_count", parts(_rewrite_part(1, 3, 2, "b")), "of split.count 2", _PART_2),
    BadFile(
        "part_same_tensor", parts(_rewrite_part(1, 2, 2, "a")), "'a' expected it once", _PART_2, "a"
    ),
    BadFile(
        "part_total",
        parts(
            lambda f: write_gguf(
                f / "m-00001-of-00002.gguf",
                {
                    "general.architecture": "qwen3",
                    "split.no": Typed(U16, 0),
                    "split.count": Typed(U16, 2),
                    "split.tensors.count": Typed(I32, 7),
                },
                {"a": A},
            )
        ),
        "expected 7 tensors in 2 parts, got 2",
        "m-00001-of-00002.gguf",
    ),
)

GROUPS = {
    "safetensors": SAFETENSORS,
    "shards": SHARDS,
    "folder": FOLDERS,
    "gguf": METADATA,
    "gguf_tensor": TENSORS,
    "gguf_parts": PARTS,
}
BAD_FILES = {f"{group}-{bad.id}": bad for group, rows in GROUPS.items() for bad in rows}
