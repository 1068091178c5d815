"""Masks of requests: closing in time, drafts, ends, and random schemas against a validator."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.structured.matcher import CompiledGrammar
from tests.structured.texts import EOS, VOCAB_SIZE, accepts, compiled, drawn

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "age": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "tags", "age", "next"],
}
SHORTEST = '{"name":"","tags":["",""],"age":0,"next":null}'


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"json": PERSON}, SHORTEST),
        ({"json": {}}, "0"),
        ({"json": {"type": "string", "minLength": 3}}, '"abc"'),
        ({"json": {"enum": ["aaaa", "b", "cc"]}}, '"b"'),
        ({"json": PERSON, "begin_after": "</think>"}, f"</think>{SHORTEST}"),
        ({"choice": ["yes", "no", "maybe later"]}, "no"),
        ({"regex": "a*b"}, "b"),
        ({"regex": r"[0-9]+\.[0-9]{2}"}, "0.00"),
        ({"regex": "[0-9]{3}-[a-z]{4,9}"}, "000-aaaa"),
        ({"regex": "漢[一-龥]{2}字"}, "漢一一字"),
        ({"regex": "x?"}, ""),
        ({"grammar": 'root ::= "(" root ")" | "xyz" | "w"'}, "w"),
    ],
)
def test_shortest_text_is_found(settings: dict[str, Any], text: str) -> None:
    grammar = compiled(**settings)

    assert accepts(grammar, text)
    assert grammar.shortest == len(text.encode())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schema", [PERSON, {}, {"type": "array"}, {"type": "string"}])
def test_text_is_closed_before_the_tokens_end(schema: Any, seed: int) -> None:
    grammar = compiled(json=schema)

    text, is_ended = drawn(grammar, 80, seed)

    jsonschema.validate(json.loads(text), schema)
    assert is_ended


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_opening", [0, 10, 20])
def test_choice_of_a_much_longer_end_is_open_only_while_it_fits(
    num_opening: int, seed: int
) -> None:
    """The end of a call is many times as long as that of an object, from one byte on."""
    end = "-" * 50
    grammar = compiled(grammar=f'start: /a{{{num_opening},40}}/ ("{{}}" | "<{end}")')
    late, early = (grammar.start((), max_tokens=90) for _ in range(2))
    late.advance(b"a" * num_opening)
    early.advance(b"a" * num_opening)

    assert not late.masks((), 50)[0, ord("<")]
    assert early.masks((), 60)[0, ord("<")]
    assert drawn(grammar, 60 + num_opening, seed)[1]


def _longest(grammar: CompiledGrammar, max_tokens: int, *, is_closing: bool) -> list[int]:
    """Return the tokens of a text that goes on as long as it may."""
    matcher = grammar.start((), max_tokens=max_tokens if is_closing else None)
    tokens: list[int] = []
    while len(tokens) < max_tokens and EOS not in tokens:
        tokens.append(int(np.flatnonzero(matcher.masks((), max_tokens - len(tokens))[0])[0]))
        matcher.advance(tokens[-1:])
    return tokens


def test_closing_begins_when_the_tokens_left_reach_the_reserve() -> None:
    tokens = _longest(compiled(json={"type": "string"}), 40, is_closing=True)

    assert tokens == [*b'"', *b" " * 29, *b'"', EOS], "a quote, the end, room for 8 more"


@pytest.mark.parametrize(
    ("max_tokens", "tokens"),
    [(3, [*b'""', EOS]), (5, [*b'"  "', EOS]), (10, [*b'"     "', EOS])],
)
def test_small_budget_keeps_a_small_reserve(max_tokens: int, tokens: list[int]) -> None:
    grammar = compiled(json={"type": "string"})

    found = _longest(grammar, max_tokens, is_closing=True)

    assert found[0] == ord('"')
    assert found[-2:] == [*b'"', EOS]
    assert len(tokens) - 1 <= len(found) <= max_tokens


@pytest.mark.parametrize(
    ("words", "max_tokens", "first"),
    [
        (["yes", "no", "maybe later"], 30, b"mny"),
        (["yes", "no", "maybe later"], 6, b"ny"),
        (["yes", "no", "maybe later"], 4, b"ny"),
        (["yes", "no", "maybe later"], 3, b"n"),
        (["Rome", "Paris", "London"], 8, b"LPR"),
    ],
)
def test_choices_that_fit_stay_open_in_a_small_budget(
    words: list[str], max_tokens: int, first: bytes
) -> None:
    matcher = compiled(choice=words).start((), max_tokens=max_tokens)

    assert bytes(np.flatnonzero(matcher.masks((), max_tokens)[0]).tolist()) == first


def test_key_that_no_longer_fits_is_left_out() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "long": {"const": "x" * 40}},
        "additionalProperties": False,
    }
    start = [*b'{"a":1']
    matcher = compiled(json=schema).start(start, max_tokens=len(start) + 9)

    assert b"," not in bytes(np.flatnonzero(matcher.masks((), 9)[0]).tolist())


def test_complete_text_goes_on_until_the_end_takes_the_last_token() -> None:
    grammar = compiled(regex="[ab]{3,}")

    assert _longest(grammar, 40, is_closing=True) == [*b"a" * 39, EOS]


def test_closing_is_a_choice_of_the_request() -> None:
    grammar = compiled(json={"type": "string"})

    assert _longest(grammar, 40, is_closing=False) == [*b'"', *b" " * 39]


@pytest.mark.parametrize("text", ["a", "<", "<tool", "é", "漢字", "a🦀"])
@pytest.mark.parametrize("max_tokens", range(36, 41))
def test_free_text_is_not_cut_short_for_a_tag_or_a_character(text: str, max_tokens: int) -> None:
    tag = {"begin": "<tool>", "schema": PERSON, "end": "</tool>"}
    grammar = compiled(structural_tag={"structures": [tag], "triggers": ["<tool>"]})
    matcher = grammar.start((), max_tokens=max_tokens)

    for i, byte in enumerate((text * 40).encode()[:max_tokens]):
        allowed = matcher.masks((), max_tokens - i)[0]
        assert allowed[byte]
        assert allowed.sum() >= 16  # any byte that goes on with a character
        matcher.advance([byte])

    assert not matcher.is_complete


def test_tag_that_has_begun_is_closed_in_time() -> None:
    tag = {"begin": "<tool>", "schema": PERSON, "end": "</tool>"}
    grammar = compiled(structural_tag={"structures": [tag], "triggers": ["<tool>"]})
    start = [*b"text <tool>"]
    matcher = grammar.start(start, max_tokens=len(start) + 90)
    tokens: list[int] = []

    while EOS not in tokens:
        allowed = matcher.masks((), 90 - len(tokens))[0]
        choice = ord("x") if allowed[ord("x")] else int(np.flatnonzero(allowed)[-1])
        tokens.append(choice)
        matcher.advance([choice])

    assert len(tokens) <= 90
    assert bytes(tokens[:-1]).partition(b"</tool>")[1] == b"</tool>"


@pytest.mark.parametrize(
    ("settings", "text"), [({"choice": ["ab"]}, b"ab"), ({"json": {"const": {}}}, b"{}")]
)
def test_complete_text_may_only_end(settings: dict[str, Any], text: bytes) -> None:
    matcher = compiled(**settings).start(list(text), max_tokens=50 + len(text))

    assert np.flatnonzero(matcher.masks((), 50)[0]).tolist() == [EOS]
    assert matcher.is_complete


@pytest.mark.parametrize(
    ("settings", "text", "is_complete"),
    [
        ({"choice": ["ab"]}, b"a", False),
        ({"choice": ["ab"]}, b"ab", True),
        ({"choice": ["ab", "abc"]}, b"ab", False),
        ({"json": {"const": {}}}, b"{}", True),
        ({"json": {"type": "integer"}}, b"12", False),
        ({"regex": "a*"}, b"", False),
    ],
)
def test_text_is_complete_where_nothing_but_the_end_may_follow(
    settings: dict[str, Any], text: bytes, is_complete: bool
) -> None:
    assert compiled(**settings).start(list(text), max_tokens=None).is_complete == is_complete


def test_ids_without_text_and_special_tokens_are_never_allowed() -> None:
    matcher = compiled(json={"type": "string"}).start([*b'"<msg>'], max_tokens=None)

    mask = matcher.masks((), 50)[0]

    assert mask.shape == (VOCAB_SIZE,)
    assert not mask[256:].any()


def test_drafts_are_cut_at_the_first_that_is_not_allowed() -> None:
    matcher = compiled(regex="ab+c").start((), max_tokens=None)

    assert matcher.filter_drafts([*b"abbxc"]) == tuple(b"abb")
    assert matcher.filter_drafts([*b"abc", EOS, *b"a"]) == tuple(b"abc")
    assert matcher.filter_drafts([*b"x"]) == ()


def test_masks_behind_drafts_are_those_behind_the_same_tokens() -> None:
    grammar = compiled(json=PERSON)
    drafts = [*b'{"name":"a","tags":']
    matcher = grammar.start((), max_tokens=None)

    masks = matcher.masks(drafts, 500)

    for i, mask in enumerate(masks):
        alone = grammar.start(drafts[:i], max_tokens=None).masks((), 500)[0]
        np.testing.assert_array_equal(mask, alone)
    np.testing.assert_array_equal(matcher.masks((), 500)[0], masks[0])


def test_drafts_never_pass_the_place_of_the_next_search() -> None:
    matcher = compiled(json={"type": "string"}).start((), max_tokens=40)
    matcher.masks((), 40)
    matcher.advance([ord('"')])

    kept = matcher.filter_drafts([*b"a" * 39])

    masks = matcher.masks(kept, 39)
    assert 0 < len(kept) < 10
    assert (masks.sum(axis=1) > 1).all()


@pytest.mark.parametrize(
    ("schema", "num_tokens"),
    [(PERSON, 25), (PERSON, 70), ({}, 1), ({}, 79), ({"type": "string"}, 55)],
)
def test_start_behind_tokens_goes_on_as_the_matcher_that_took_them(
    schema: Any, num_tokens: int
) -> None:
    """A request that was preempted, in the middle of being closed too."""
    grammar = compiled(json=schema)
    tokens = _longest(grammar, 80, is_closing=True)

    resumed = grammar.start(tokens[:num_tokens], max_tokens=80)

    for i, token_id in enumerate(tokens[num_tokens:], num_tokens):
        assert np.flatnonzero(resumed.masks((), 80 - i)[0])[0] == token_id
        resumed.advance([token_id])


LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "number", "minimum": -5, "maximum": 5},
        {"type": "integer", "minimum": 3},
        {"type": "string"},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{2,3}$"},
        {"type": "string", "format": "date"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", 1, None, [2]]},
        {"const": {"k": "v"}},
    ]
)


def _inner(schemas: Any) -> Any:
    names = st.sampled_from(["a", "b", "c d", "é"])
    properties = st.dictionaries(names, schemas, max_size=3)
    objects = st.builds(
        lambda p, n, more: {
            "type": "object",
            "properties": p,
            "required": list(p)[:n],
            "additionalProperties": more,
        },
        properties,
        st.integers(0, 3),
        st.booleans(),
    )
    arrays = st.builds(
        lambda items, low, more: {
            "type": "array",
            "items": items,
            "minItems": low,
            "maxItems": low + more,
        },
        schemas,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    return st.one_of(objects, arrays, st.builds(lambda a, b: {"anyOf": [a, b]}, schemas, schemas))


@settings(max_examples=30, deadline=None)
@given(schema=st.recursive(LEAVES, _inner, max_leaves=5), seed=st.integers(0, 99))
def test_random_text_of_a_random_schema_is_valid(schema: Any, seed: int) -> None:
    text, is_ended = drawn(compiled(json=schema), 300, seed)

    assert is_ended
    jsonschema.validate(
        json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


@pytest.mark.parametrize("code", [*range(32), 0x22, 0x5C, 0x7F, 0x85, 0x2028, 0xFEFF])
def test_choice_of_a_character_that_literals_may_not_hold(code: int) -> None:
    word = f"a{chr(code)}b"
    assert drawn(compiled(choice=[word]), 20, 0) == (word.encode(), True)


@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.text(max_size=4), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_random_choice_is_one_of_the_words(words: list[str], seed: int) -> None:
    text, is_ended = drawn(compiled(choice=words), 200, seed)

    assert is_ended
    assert text.decode() in words
