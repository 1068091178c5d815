"""The description of the routes follows the table of the routes."""

import json
from typing import Any

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

    assert described == document(ROUTES)
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
