"""Grammars made to kill or to stall: each is compiled in a process of its own and answered."""

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.structured.closing import MAX_BYTES
from pyvt.testing.fakes import FakeTokenizer
from tests.structured.texts import compiled

SCRIPT = """
import json, resource, sys, time
from tests.structured.texts import compiled
from pyvt.errors import RequestError
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
compiled(choice=["a"])
for kind, text in json.load(sys.stdin):
    try:
        compiled(**{kind: text})
    except RequestError as error:
        assert len(str(error)) < 600, len(str(error))
        print("refused")
    else:
        print("taken")
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
assert grown < 300, f"{grown} MiB"
"""
RULES = "\n".join(f"r{i}: r{i + 1}" for i in range(5000))
GBNF_RULES = "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000))
DEFS = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(3000)}
NESTED = '{"items":' * 5000 + "{}" + "}" * 5000
CASES = {
    "nested-regex": ("regex", "(" * 60000, "refused"),
    "nested-regex-short": ("regex", "(" * 5000 + "a" + ")" * 5000, "refused"),
    "anchors": ("regex", "^+[a-z]$", "taken"),
    "repeat": ("regex", "a{1,1000000000}", "taken"),
    "repeat-twice": ("regex", "(a{1,1000}){1,1000}(b|c){5000}", "taken"),
    "stars": ("regex", "(a+)+$", "taken"),
    "options": ("regex", "a?" * 20000, "refused"),
    "left-recursion": ("grammar", 'start: start "a" | "b"', "taken"),
    "nested-lark": ("grammar", "start: " + "(" * 60000 + '"a"' + ")" * 60000, "refused"),
    "nested-gbnf": ("grammar", "root ::= " + "(" * 60000, "refused"),
    "rules": ("grammar", f'start: r0\n{RULES}\nr5000: "a"', "refused"),
    "rules-gbnf": ("grammar", f'root ::= r0\n{GBNF_RULES}\nr5000 ::= "a"', "refused"),
    "references": ("json", {"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}, "refused"),
    "references-in-lark": (
        "grammar",
        "start: %json " + json.dumps({"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}),
        "refused",
    ),
    "references-in-lark-escaped": (
        "grammar",
        "start: %json "
        + json.dumps({"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}).replace(
            "$r", "$\\u0072"
        ),
        "refused",
    ),
    "references-in-tags": (
        "structural_tag",
        {
            "structures": [
                {
                    "begin": "<t>",
                    "schema": {"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}},
                    "end": "",
                }
            ],
            "triggers": ["<t>"],
        },
        "refused",
    ),
    "pattern": ("json", {"items": {"pattern": "a?" * 20000}}, "refused"),
    "pattern-of-names": ("json", {"patternProperties": {"a?" * 20000: {}}}, "refused"),
    "regex-in-lark": ("grammar", f"start: /{'a?' * 20000}/", "refused"),
    "items": ("json", {"type": "array", "minItems": 10**6}, "taken"),
    "characters": ("json", {"type": "string", "minLength": 10**7}, "taken"),
    "repeats": ("grammar", 'start: ("a" | "b"){1000000}', "taken"),
    "nested-json": ("json", NESTED, "refused"),
    "large-json": ("json", {"enum": ["x" * 1000] * 2000}, "refused"),
    "enum": ("json", {"enum": [f"value {i}" for i in range(10_000)]}, "taken"),
    "choices": ("choice", [f"value {i}" for i in range(5000)], "taken"),
    "properties": (
        "json",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
        "taken",
    ),
}


def test_hostile_grammars_are_answered_and_the_process_lives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([case[:2] for case in CASES.values()]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    answers = dict(zip(CASES, done.stdout.split(), strict=True))
    assert answers == {name: case[2] for name, case in CASES.items()}


def test_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,), timeout_s=0.01)
    release = threading.Event()
    monkeypatch.setattr("pyvt.structured.compiler._compile", lambda *_: release.wait())

    with pytest.raises(RequestError, match=r"compiles in 0\.01 s") as refused:
        compiler.compile(StructuredOutputsParams(regex="a"))
    release.set()
    compiler.close()

    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "settings",
    [{"regex": "(a{100}){100}"}, {"regex": "a{1000000000}"}, {"grammar": 'start: "a" start'}],
)
def test_text_that_is_forced_to_be_too_long_counts_in_the_shortest(
    settings: dict[str, Any],
) -> None:
    """The search left no trace of a forced text, and the request ended with none of it."""
    assert compiled(**settings).shortest == MAX_BYTES


def test_grammar_that_cannot_go_on_allows_nothing() -> None:
    """A failed matcher of the library lets the end through; that was taken for a whole text."""
    matcher = compiled(regex="a{5}").start((), max_tokens=None)
    matcher.advance(b"b")

    assert matcher.error is not None
    assert not matcher.masks((), 10).any()
