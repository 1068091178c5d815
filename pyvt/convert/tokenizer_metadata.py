"""``tokenizer.json`` as the ``tokenizer.ggml.*`` keys of GGUF; the keys are in ``pyvt.tokenizer``.

1. Byte-level BPE is model "gpt2": its pre-tokenizer must be a row of ``PRE_TOKENIZERS``, since a
   file names it and does not hold it.
2. BPE over characters with byte fallback is model "llama": readers merge the pair of the highest
   score, so the score of a token is minus the rank of the first merge that makes it.
3. Ids of padding rows are unused tokens named ``[PADn]``.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pyvt.config.model import ModelConfig
from pyvt.convert.gguf_writer import F32, I32, Typed
from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.tokenizer import hf_tokenizer
from pyvt.tokenizer.gguf import DIGITS_FIRST, PRE_TOKENIZERS
from pyvt.tokenizer.gguf_keys import PREFIX
from pyvt.weights.resolve import ModelFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Below the score of every token that a merge makes.
_NEVER_MERGED = -1e6
_ID_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


def tokenizer_metadata(files: ModelFiles, config: ModelConfig) -> dict[str, Any]:
    """Return the keys of a model's tokenizer and its chat templates.

    Raises:
        CheckpointError: there is no tokenizer.json, or it does not fit the model.
        UnsupportedError: GGUF has no name for its parts.
    """
    if files.tokenizer_json is None:
        raise CheckpointError(
            f"[quantize] {str(files.path)!r}: expected tokenizer.json beside the weights, got no "
            "such file; download the whole repository",
            path=files.path,
        )
    tokenizer = hf_tokenizer(files.tokenizer_json, dict(files.tokenizer_config or {}))
    content = json.loads(files.tokenizer_json)
    model = content["model"]
    keys = _spm_keys(content) if model.get("byte_fallback") else _bpe_keys(content)
    size = max(config.vocab_size, tokenizer.vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"[quantize] tokenizer.json: expected at most vocab_size={config.vocab_size} tokens, "
            f"got {tokenizer.vocab_size}; it belongs to another model",
            path=files.path,
        )
    unknown = tokenizer.specials.get("unk_token")
    texts, types = _tokens(content, size, unknown)
    ids = {text: i for i, text in enumerate(texts)}
    special = {
        key: ids[tokenizer.specials[name]]
        for name, key in _ID_KEYS.items()
        if tokenizer.specials.get(name) in ids
    }
    if config.bos_token_id is not None:
        special.setdefault("bos_token_id", config.bos_token_id)
    for token_id in config.eos_token_ids[:1]:
        special.setdefault("eos_token_id", token_id)
    first = tokenizer.encode("a")[:1]
    keys |= {
        "tokens": texts,
        "token_type": Typed(I32, types),
        **special,
        "add_bos_token": first == [special.get("bos_token_id")],
    }
    if model.get("byte_fallback"):
        keys["scores"] = Typed(F32, _scores(texts, model["merges"]))
    templates = {
        "tokenizer.chat_template" + ("" if name == "default" else f".{name}"): text
        for name, text in files.chat_templates.items()
    }
    return {PREFIX + key: value for key, value in keys.items()} | templates


def _tokens(
    content: Mapping[str, Any], size: int, unknown: str | None
) -> tuple[list[str], list[int]]:
    """Return the text and the type of each of ``size`` ids."""
    texts = [f"[PAD{i}]" for i in range(size)]
    types = [_UNUSED] * size
    is_spm = bool(content["model"].get("byte_fallback"))
    for text, token_id in content["model"]["vocab"].items():
        texts[token_id] = text
        types[token_id] = _BYTE if is_spm and _BYTE_TOKEN.fullmatch(text) else _NORMAL
    for token in content.get("added_tokens") or ():
        texts[token["id"]] = token["content"]
        types[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    if is_spm and unknown in texts:
        types[texts.index(unknown)] = _UNKNOWN
    return texts, types


def _bpe_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    return {"model": "gpt2", "pre": _pre_tokenizer(content), "merges": merges or [""]}


def _spm_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    parts = [*_parts(content.get("normalizer")), *_parts(content.get("pre_tokenizer"))]
    adds_space = any(
        part["type"] == "Prepend"
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )
    return {"model": "llama", "pre": "default", "add_space_prefix": adds_space}


def _scores(texts: list[str], merges: list[Any]) -> list[float]:
    """Return minus the rank of the first merge that makes each token."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    return [float(-ranks[text]) if text in ranks else _NEVER_MERGED for text in texts]


def _pre_tokenizer(content: Mapping[str, Any]) -> str:
    """Return the name of a pre-tokenizer by the regexes that it cuts a text with."""
    regexes = tuple(regex for part in _parts(content.get("pre_tokenizer")) for regex in _cuts(part))
    is_nfc = any(part["type"] == "NFC" for part in _parts(content.get("normalizer")))
    ignores = bool(content["model"].get("ignore_merges"))
    for name, row in PRE_TOKENIZERS.items():
        if (row.regexes, row.is_nfc, row.ignore_merges) == (regexes, is_nfc, ignores):
            return name
    known = ", ".join(PRE_TOKENIZERS)
    raise UnsupportedError(
        f"[quantize] tokenizer.json: expected the pre-tokenizer and normalizer of one of {known}, "
        f"got regexes {' | '.join(regexes)[:200]!r}, nfc={is_nfc}, ignore_merges={ignores}"
    )


def _cuts(part: Mapping[str, Any]) -> tuple[str, ...]:
    if part["type"] == "Split":
        return (str(part["pattern"].get("Regex")),)
    if part["type"] == "Digits" and part.get("individual_digits"):
        return DIGITS_FIRST[:1]
    if part["type"] == "ByteLevel":
        return DIGITS_FIRST[1:] if part.get("use_regex", True) else ()
    return (part["type"],)


def _parts(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the parts of a sequence, or the one part there is."""
    if part is None:
        return []
    nested = part.get("normalizers") or part.get("pretokenizers")
    return [part] if nested is None else [item for each in nested for item in _parts(each)]
