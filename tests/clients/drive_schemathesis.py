"""Asks every operation of /openapi.json with generated requests; see ``test_fuzz``.

Comes in: a JSON object with url, key and the number of requests for each operation. Goes out: for
each operation and mode how often each status came, and what was wrong of the answers.
"""

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def agree(body: dict[str, Any], path: str) -> None:
    """Change what is right by itself but not beside other fields, which no schema can tell."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if body.get(name):
            body[name] = 1 + body[name] % 60
    body.pop("min_tokens", None)
    body.pop("dimensions", None)
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    if body.get("stream"):
        body.pop("prompt_logprobs", None)
    if body.get("response_format"):
        body.pop("structured_outputs", None)
    if body.get("response_format") or body.get("structured_outputs"):
        body.pop("ignore_eos", None)
    if body.get("continue_final_message"):
        body.pop("continue_final_message")
    if not isinstance(body.get("tool_choice"), str):
        body.pop("tool_choice", None)
    if not body.get("tools"):
        body.pop("tool_choice", None)
    if path == "/tokenize":
        body.pop("messages", None)
        body["prompt"] = body.get("prompt") or "a"


def fuzz(operation: Any, mode: GenerationMode, headers: dict[str, str], count: int) -> Any:
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    reasons: Counter[str] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            agree(case.body, case.operation.path)
        response = case.call(headers=headers, timeout=120)
        statuses[response.status_code] += 1
        if response.status_code >= 400:
            found = response.json().get("error") or {}
            reasons[str(found.get("message", ""))[:90]] += 1
        try:
            case.validate_response(response, checks=CHECKS, headers=headers)
        except BaseException as error:
            wrong.append(f"{str(error)[:400]} | {str(case.body)[:300]}")

    with suppress(Unsatisfiable):  # there is nothing wrong to send without a body
        ask()
    return {"statuses": statuses, "wrong": wrong[:5], "reasons": reasons.most_common(12)}


def main() -> None:
    given_ = json.load(sys.stdin)
    headers = {"Authorization": f"Bearer {given_['key']}"}
    schema = schemathesis.openapi.from_url(f"{given_['url']}/openapi.json", headers=headers)
    found = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET":
                continue
            name = f"{operation.label} {mode.value}"
            start_s = time.monotonic()
            found[name] = fuzz(operation, mode, headers, given_["count"])
            print(f"{name}: {time.monotonic() - start_s:.1f} s", file=sys.stderr, flush=True)
    json.dump(found, sys.stdout)


main()
