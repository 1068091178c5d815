"""A string's schema as a terminal of a grammar, for texts that are written without quotes."""

from collections.abc import Mapping
from typing import Any

import llguidance

ANY = "(.|\\n)*"
# Keywords that say more of a string than a terminal can.
_TOO_MUCH = ("format", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef")
_KEPT = ("minLength", "maxLength", "pattern")


def text_terminal(kind: Mapping[str, Any], *, is_chosen: bool = False) -> tuple[str, list[str]]:
    """Return the right side of a Lark terminal, and the keywords that it does not keep.

    Args:
        kind: the schema of a string; the terminal holds only its texts, but for those keywords,
            ``enum`` and ``const``.
        is_chosen: the text is one of some words, so no keyword is kept.
    """
    lost = [name for name in _TOO_MUCH if name in kind]
    if is_chosen:
        return "", [*lost, *(name for name in _KEPT if name in kind)]
    parts = []
    for name in _KEPT:
        if name in kind:
            terminal = _of_keyword(name, kind[name])
            if _is_valid(terminal):
                parts.append(terminal)
            else:
                lost.append(name)
    return " & ".join(parts) or f"/{ANY}/", lost


def _of_keyword(name: str, value: Any) -> str:
    """Return the terminal of one keyword, an invalid one where it cannot be said."""
    if name == "pattern":
        return _searched(value) if isinstance(value, str) else ""
    if not isinstance(value, int) or isinstance(value, bool):
        return ""
    return f"/(.|\\n){{{value},}}/" if name == "minLength" else f"/(.|\\n){{0,{value}}}/"


def _searched(pattern: str) -> str:
    """Return the regular expression of whole texts in which a pattern is found.

    Alternatives beside an anchor are held to it all, so no text is let through that should not be.
    """
    head, tail = ANY, ANY
    if pattern.startswith("^"):
        head, pattern = "", pattern[1:]
    before = pattern[:-1]
    if pattern.endswith("$") and (len(before) - len(before.rstrip("\\"))) % 2 == 0:
        tail, pattern = "", before
    inner = llguidance.regex_to_lark(pattern)
    # Alone it must be whole, too: ``a)|(b`` is not.
    return f"/{head}({inner}){tail}/" if not inner or _is_valid(f"/{inner}/") else ""


def _is_valid(terminal: str) -> bool:
    if not terminal:
        return False
    grammar = llguidance.grammar_from("lark", f"start: TEXT\nTEXT: {terminal}")
    is_wrong, _ = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    return not is_wrong
