"""What a ``tokenizer.json`` may be made of: looked at before the ``tokenizers`` package builds it.

The package trusts its file: some parts end the process when their data is damaged, and others make
gigabytes of a short text. Let through are the parts that tokenizers of Llama and Qwen are made of.

1. ``model``: BPE, without dropout, which would cut the same text differently each time.
2. ``normalizer``, ``pre_tokenizer``, ``post_processor``: the types of ``KNOWN_PARTS``.
3. Replacing and prepending normalizers make a text at most ``MAX_GROWTH`` times as long, all of
   them together.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyvt.errors import CheckpointError, UnsupportedError

KNOWN_PARTS: Mapping[str, frozenset[str]] = {
    "normalizer": frozenset(
        ["Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence", "Strip"]
    ),
    "pre_tokenizer": frozenset(
        ["ByteLevel", "Digits", "Metaspace", "Punctuation", "Sequence", "Split", "Whitespace"]
    ),
    "post_processor": frozenset(["ByteLevel", "Sequence", "TemplateProcessing"]),
}
MAX_GROWTH = 64
_MAX_VALUES = 3_000_000


def check_parts(tokenizer_json: str) -> None:
    """Check the text of a tokenizer.json.

    Raises:
        CheckpointError: no JSON object, or one that is too large.
        UnsupportedError: a part that is not known, or one that could make a text much longer.
    """
    if sum(map(tokenizer_json.count, ",[{")) > _MAX_VALUES:
        raise _bad(f"at most {_MAX_VALUES} values", "more")
    try:
        content = json.loads(tokenizer_json, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad("a file of the tokenizers library", str(error)) from error
    if not isinstance(content, dict):
        raise _bad("an object", type(content).__name__)
    _check_model(content.get("model"))
    for name, known in KNOWN_PARTS.items():
        for part in _flat(content.get(name)):
            if part.get("type") not in known:
                raise _unknown(f"{name}.type", ", ".join(sorted(known)), part.get("type"))
    growth = 1
    for part in _flat(content.get("normalizer")):
        added = part.get("content") if part.get("type") == "Replace" else part.get("prepend")
        growth *= max(1, len(added) if isinstance(added, str) else 1)
    if growth > MAX_GROWTH:
        raise _unknown("normalizer", f"texts at most {MAX_GROWTH} times as long", growth)


def _check_model(model: Any) -> None:
    if not isinstance(model, dict):
        raise _bad("a file of the tokenizers library", f"{type(model).__name__} as its model")
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise _unknown("model.type", "BPE", kind)
    if model.get("dropout"):
        raise _unknown("model.dropout", "none", model["dropout"])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values of a key the package could take the other one."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _bad("each key once", "one twice")
    return result


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a sequence, nested ones too; nothing for null."""
    if part is None:
        return
    if not isinstance(part, dict):
        raise _bad("objects as parts", type(part).__name__)
    yield part
    for key in ("normalizers", "pretokenizers", "processors"):
        for item in part.get(key) or ():
            yield from _flat(item)


def _bad(expected: str, got: str) -> CheckpointError:
    return CheckpointError(f"[tokenizer] tokenizer.json: expected {expected}, got {got}")


def _unknown(name: str, expected: str, got: Any) -> UnsupportedError:
    return UnsupportedError(
        f"[tokenizer] tokenizer.json: {name}: expected {expected}, got {repr(got)[:80]}"
    )
