"""A small SentencePiece vocabulary in the form of GGUF metadata, with ties and gaps on purpose."""

from typing import Any

_PIECES = (
    # equal scores: the leftmost pair wins
    *(("ab", -5.0), ("bc", -5.0), ("ca", -5.0), ("abc", -4.0)),
    *(("▁a", -2.0), ("▁b", -2.0), ("▁the", -1.0), ("▁th", -3.0), ("he", -2.5), ("th", -3.5)),
    *(("▁▁", -1.5), ("▁▁▁▁", -1.4), ("er", -2.2), ("in", -2.1), ("ing", -2.0), ("▁in", -2.05)),
    *(("ll", -6.0), ("lll", -6.5), ("ell", -6.2), ("hell", -6.1), ("hello", -7.0), ("lo", -6.05)),
    *(("é", -8.0), ("e\u0301", -8.1), ("日本", -3.0), ("😀", -9.0), ("12", -4.0), ("23", -3.9)),
)
_CHARS = "▁abcdefghijklmnopqrstuvwxyzABC0123456789.,!?'日本"
_ADDED = (("<|user|>", 3), ("<|end|>", 3), ("<tool>", 4))


def tiny_spm_metadata(*, add_space_prefix: bool = True) -> dict[str, Any]:
    """Return ``tokenizer.ggml.*`` keys of model "llama"; few characters are known."""
    rows: list[tuple[str, float, int]] = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    rows += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    rows += [(piece, score, 1) for piece, score in _PIECES]
    rows += [(char, -20.0 - rank, 1) for rank, char in enumerate(_CHARS)]
    rows += [(text, 0.0, kind) for text, kind in _ADDED]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.scores": [row[1] for row in rows],
        "tokenizer.ggml.token_type": [row[2] for row in rows],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
