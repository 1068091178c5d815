"""A tokenizer from GGUF metadata: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

Keys, all below ``tokenizer.ggml.``:

1. ``model``: "gpt2" or "llama". ``pre``: the pre-tokenizer of "gpt2", a row of ``PRE_TOKENIZERS``.
2. ``tokens``: one text an id. ``token_type``: 1 normal, 2 unknown, 3 control, 4 user-defined,
   5 unused, 6 byte; any integer type. Types 2, 3 and 4 are added tokens, 2 and 3 special too.
3. ``merges`` (gpt2): "left right", best first; their texts need not be tokens. ``scores``
   (llama): one float a token.
4. ``bos/eos/eot/eom/unknown/padding_token_id``; ``add_bos_token``, ``add_eos_token``,
   ``add_space_prefix``.

llama.cpp does not normalise; the tokenizers of Hugging Face do, and the models were trained with
them, so their NFC is kept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from pyvt.errors import UnsupportedError, did_you_mean
from pyvt.tokenizer.base import Tokenizer
from pyvt.tokenizer.fast import Encoder, FastTokenizer
from pyvt.tokenizer.gguf_keys import TokenizerKeys
from pyvt.tokenizer.spm import SpmTokenizer
from pyvt.tokenizer.vocabulary import Spelling, Vocabulary

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Each digit by itself, then GPT-2's own regex.
DIGITS_FIRST = (r"\p{N}", _GPT2)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut before BPE: each regex in turn isolates its matches."""

    regexes: tuple[str, ...]
    is_nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen2": PreTokenizer((_QWEN2,), is_nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), is_nfc=True),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True),
    "smollm": PreTokenizer(DIGITS_FIRST),
}

STOP_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "</s>",
        "<|end|>",
        "<end_of_turn>",
        "<EOT>",
    }
)

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_SPECIAL_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes.

    Raises:
        CheckpointError: a key that is missing, of a wrong type or length; it is named.
        UnsupportedError: a tokenizer model or a pre-tokenizer that is not in the tables.
    """
    keys = TokenizerKeys(metadata)
    model = keys.text("model")
    build = _MODELS.get(model)
    if build is None:
        raise UnsupportedError(
            f"[gguf tokenizer] tokenizer.ggml.model: got {model!r}; {did_you_mean(model, _MODELS)}"
        )
    return build(keys)


def _vocabulary(keys: TokenizerKeys, spelling: Spelling, strips_first_space: bool) -> Vocabulary:
    texts = keys.texts("tokens")
    types = keys.numbers("token_type", len(texts), "integers")
    ids = {name: keys.token_id(key, len(texts)) for name, key in _SPECIAL_KEYS.items()}
    is_special = (types == _CONTROL) | (types == _UNKNOWN)
    added = np.flatnonzero(is_special | (types == _USER_DEFINED)).tolist()
    special = np.flatnonzero(is_special).tolist()
    unknown_ids = np.flatnonzero(types == _UNKNOWN).tolist()
    return Vocabulary(
        size=len(texts),
        text_of=texts.get,
        spelling=spelling,
        added={i: texts[i] for i in added if texts[i]},
        special_ids=frozenset(special),
        eos_token_ids=_eos_token_ids(keys, texts, added),
        bos_token_id=ids["bos_token"],
        unknown_id=unknown_ids[0] if unknown_ids else None,
        specials={name: texts[i] for name, i in ids.items() if i is not None},
        strips_first_space=strips_first_space,
        unused_ids=frozenset(np.flatnonzero(types == _UNUSED).tolist()),
    )


def _eos_token_ids(
    keys: TokenizerKeys, texts: Sequence[str], added: Sequence[int]
) -> tuple[int, ...]:
    """Return what the file names, then added tokens by text: "</s>" may be ordinary text too."""
    named = (keys.token_id(f"{name}_token_id", len(texts)) for name in ("eos", "eot", "eom"))
    by_text = (i for i in added if texts[i] in STOP_TEXTS)
    return tuple(dict.fromkeys([*(i for i in named if i is not None), *by_text]))


def _ends(keys: TokenizerKeys, num_tokens: int, adds_bos: bool) -> dict[str, tuple[int, ...]]:
    """Return the ids that go before and after a raw text."""
    ends: dict[str, tuple[int, ...]] = {}
    for argument, name, default in (("prefix_ids", "bos", adds_bos), ("suffix_ids", "eos", False)):
        token_id = keys.token_id(f"{name}_token_id", num_tokens)
        adds = keys.flag(f"add_{name}_token", default and token_id is not None)
        if adds and token_id is None:
            raise keys.fail(f"{name}_token_id", f"an id, as add_{name}_token is true", "nothing")
        ends[argument] = (token_id,) if adds and token_id is not None else ()
    return ends


def _bpe(keys: TokenizerKeys) -> Tokenizer:
    name = keys.text("pre")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedError(
            f"[gguf tokenizer] tokenizer.ggml.pre: got {name!r}; "
            f"{did_you_mean(name, PRE_TOKENIZERS)}"
        )
    vocabulary = _vocabulary(keys, "byte_level", strips_first_space=False)
    texts, lines = keys.texts("tokens"), keys.texts("merges")
    return FastTokenizer(
        lambda: _bpe_encoder(pre, vocabulary, [*texts], lines),
        vocabulary,
        **_ends(keys, vocabulary.size, pre.adds_bos),
    )


def _bpe_encoder(
    pre: PreTokenizer, vocabulary: Vocabulary, texts: Sequence[str], lines: Iterable[str]
) -> Encoder:
    merges = _merges(lines)
    vocab = _first_ids(texts)
    unnamed = _unnamed(merges, vocab, len(texts))
    full = tokenizers.Tokenizer(
        models.BPE(vocab | unnamed, merges, ignore_merges=pre.ignore_merges)
    )
    if pre.is_nfc:
        full.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in pre.regexes]
    to_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    full.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_alphabet])
    full.decoder = decoders.ByteLevel()
    # Added tokens are in the model's vocabulary already, so they keep the ids of the file.
    full.add_tokens(
        [
            AddedToken(text, normalized=False, special=token_id in vocabulary.special_ids)
            for token_id, text in vocabulary.added.items()
        ]
    )
    spelled = {i: tuple(vocab[c] for c in text if c in vocab) for text, i in unnamed.items()}
    return Encoder(full, spelled)


def _first_ids(texts: Sequence[str]) -> dict[str, int]:
    """Return the id of each text, the lowest where it occurs twice."""
    return dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))


def _merges(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of ``merges``; a line without two halves joins nothing, as in llama.cpp."""
    parted = (line.partition(" ") for line in lines)
    return [(left, right) for left, _, right in parted if left and right]


def _unnamed(
    merges: Sequence[tuple[str, str]], vocab: Mapping[str, int], size: int
) -> dict[str, int]:
    """Return ids from ``size`` on for texts of merges that are no tokens.

    Such a text may be a step on the way to a token; one that is left over is spelled out again by
    its characters, as in llama.cpp.
    """
    lefts, rights = [left for left, _ in merges], [right for _, right in merges]
    texts = {*lefts, *rights, *map(add, lefts, rights)} - vocab.keys()
    return {text: i for i, text in enumerate(sorted(texts), size)}


def _spm(keys: TokenizerKeys) -> Tokenizer:
    adds_space = keys.flag("add_space_prefix", True)
    vocabulary = _vocabulary(keys, "spaced", strips_first_space=adds_space)
    texts = keys.texts("tokens")
    scores = keys.numbers("scores", len(texts), "floats")
    return SpmTokenizer(
        vocabulary,
        _first_ids(texts),
        scores.tolist(),
        adds_space_prefix=adds_space,
        **_ends(keys, len(texts), adds_bos=True),
    )


_MODELS: Mapping[str, Callable[[TokenizerKeys], Tokenizer]] = {"gpt2": _bpe, "llama": _spm}
