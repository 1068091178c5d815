"""The description of the routes follows the table of the routes."""

import json
import re
from typing import Any

import pytest

from pyvt.server.narrowing import below
from pyvt.server.openapi import document
from pyvt.server.routes import ROUTES
from tests.server.conftest import Serve


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_references(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_references(item) for item in value))
    return set()


def test_every_route_is_described(serve: Serve) -> None:
    described = serve().get("/openapi.json").json()

    assert described["paths"] == document(ROUTES)["paths"]
    chat = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert chat["model"]["anyOf"][0]["enum"] == ["tiny", "org/other"]
    assert chat["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 259
    for row in ROUTES:
        operation = described["paths"][row.path.replace(":path}", "}")][row.method.lower()]
        assert operation["summary"]
        assert ("requestBody" in operation) == (row.model is not None)


def test_every_reference_has_a_schema() -> None:
    described = document(ROUTES)

    names = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert _references(described) <= names
    assert json.loads(json.dumps(described)) == described


def test_ids_of_operations_are_unique() -> None:
    paths = document(ROUTES)["paths"].values()
    ids = [operation["operationId"] for path in paths for operation in path.values()]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11, 99, 100, 258, 1000, 151_936])
def test_numbers_below_a_limit_are_those_that_the_pattern_takes(limit: int) -> None:
    pattern = re.compile(below(limit))
    near = {limit + step for step in range(-12, 12)} | {0, 1, 5, 10, 99, 255, 10**5, 10**7}

    for number in near:
        assert bool(pattern.match(str(number))) == (0 <= number < limit), number
    assert not pattern.match("01")
    assert not pattern.match("x")
