"""A tokenizer from the text of ``tokenizer.json`` and ``tokenizer_config.json``.

``tokenizer.json`` decides everything about ids, added BOS included (its post-processor); the class
named in ``tokenizer_config.json`` is ignored. The config gives the texts of the special tokens.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.tokenizer.fast import Encoder, FastTokenizer, package_faults_as
from pyvt.tokenizer.hf_parts import check_parts
from pyvt.tokenizer.vocabulary import Spelling, Vocabulary

SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")

# A decoder's own name, or the names of the steps of a sequence → how tokens spell bytes.
_SPELLINGS: Mapping[tuple[str, ...], Spelling] = {
    ("ByteLevel",): "byte_level",
    ("Replace", "ByteFallback", "Fuse", "Strip"): "spaced",
    ("Replace", "ByteFallback", "Fuse"): "spaced",
    ("ByteFallback", "Metaspace"): "spaced",
    ("Metaspace",): "spaced",
}


def hf_tokenizer(tokenizer_json: str, tokenizer_config: dict[str, Any] | None) -> FastTokenizer:
    """Build the tokenizer of a Hugging Face model.

    Args:
        tokenizer_json: the text of ``tokenizer.json``.
        tokenizer_config: the content of ``tokenizer_config.json``; without it there is no
            end-of-sequence id but the one that the model's config names.

    Raises:
        CheckpointError: a file that cannot be read, or a special token that is not in it.
        UnsupportedError: a part that is not in ``hf_parts``, or a decoder other than byte-level
            BPE's and SentencePiece's.
    """
    check_parts(tokenizer_json)
    with package_faults_as(
        CheckpointError, "[tokenizer] tokenizer.json: expected a file of the tokenizers library"
    ):
        full = tokenizers.Tokenizer.from_str(tokenizer_json)
    specials = _special_texts(tokenizer_config or {})
    ids = {name: full.token_to_id(text) for name, text in specials.items()}
    for name in ("bos_token", "eos_token"):
        if name in specials and ids[name] is None:
            raise CheckpointError(
                f"[tokenizer] {name}: expected a token of tokenizer.json, got {specials[name]!r}"
            )
    added = {i: token.content for i, token in full.get_added_tokens_decoder().items()}
    special = (i for i, token in full.get_added_tokens_decoder().items() if token.special)
    spelling, strips_first_space = _decoder_of(full)
    eos_token_id = ids.get("eos_token")
    token_ids = {*full.get_vocab(with_added_tokens=True).values(), *added}
    # A vocabulary with holes is higher than its count.
    size = max(token_ids, default=-1) + 1
    vocabulary = Vocabulary(
        size=size,
        text_of=full.id_to_token,
        spelling=spelling,
        added=added,
        special_ids=frozenset(special),
        eos_token_ids=() if eos_token_id is None else (eos_token_id,),
        bos_token_id=ids.get("bos_token"),
        unknown_id=ids.get("unk_token"),
        specials=specials,
        strips_first_space=strips_first_space,
        unused_ids=frozenset(range(size)) - token_ids if size > len(token_ids) else frozenset(),
    )
    encoder = Encoder(full)
    return FastTokenizer(lambda: encoder, vocabulary)


def _special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a tokenizer_config: texts, or objects with ``content``."""
    texts: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if text is None and not isinstance(value, Mapping):
            continue
        if not isinstance(text, str):
            raise CheckpointError(
                f"[tokenizer_config.json] {name}: expected a string or an object with 'content', "
                f"got {value!r}"
            )
        texts[name] = text
    return texts


def _decoder_of(full: tokenizers.Tokenizer) -> tuple[Spelling, bool]:
    """Return how tokens spell bytes, and whether decoding drops one leading space."""
    state: dict[str, Any] = json.loads(full.decoder.__getstate__()) if full.decoder else {}
    steps: list[dict[str, Any]] = state.get("decoders", [state] if state else [])
    names = tuple(step["type"] for step in steps)
    spelling = _SPELLINGS.get(names)
    if spelling is None:
        known = "; ".join(" ".join(steps) for steps in _SPELLINGS)
        raise UnsupportedError(
            f"[tokenizer] decoder: expected one of ({known}), got {' '.join(names) or None!r}"
        )
    last = steps[-1]
    strips = (last["type"] == "Strip" and last.get("start", 0) > 0) or (
        last["type"] == "Metaspace" and last.get("prepend_scheme", "always") != "never"
    )
    return spelling, strips
