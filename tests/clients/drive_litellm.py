"""Drives litellm; see ``test_clients`` for what comes in and goes out."""

import json
import sys
from typing import Any

import litellm

litellm.suppress_debug_info = True


def options(given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    found = {
        "model": f"openai/{case['model'] or given['model']}",
        "api_base": f"{given['url']}/v1",
        "api_key": case.get("key", given["key"]),
        "max_tokens": case["max_tokens"],
        "num_retries": 0,
        "timeout": 60,
    }
    found |= {name: case[name] for name in ("messages", "stop", "temperature") if name in case}
    if case.get("has_tools"):
        found["tools"] = [{"type": "function", "function": given["tool"]}]
    if "choice" in case:
        found |= {"tool_choice": case["choice"], "parallel_tool_calls": False}
    if case["text"] is not None:
        found["extra_body"] = {"forced_token_ids": case["ids"]}
    return found


def outcome(done: Any) -> dict[str, Any]:
    (choice,) = done.choices
    message = choice.message
    calls = [
        [call.function.name, json.loads(call.function.arguments)]
        for call in message.tool_calls or ()
    ]
    return {
        "text": message.content or "",
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": calls,
        "names": [name for name, _ in calls],
        "end": choice.finish_reason,
    }


def run(given: dict[str, Any], case: dict[str, Any]) -> Any:
    match case["kind"]:
        case "chat" if case["is_stream"]:
            parts = list(litellm.completion(**options(given, case), stream=True))
            return outcome(litellm.stream_chunk_builder(parts))
        case "chat":
            return outcome(litellm.completion(**options(given, case)))
        case "schema":
            form = {
                "type": "json_schema",
                "json_schema": {"name": "p", "schema": given["person"], "strict": True},
            }
            done = litellm.completion(**options(given, case), response_format=form)
            person = json.loads(done.choices[0].message.content)
            return {"is_person": person.keys() == {"name", "age"}}
        case "leaves":
            stream = litellm.completion(**options(given, case), stream=True)
            next(iter(stream))
            stream.completion_stream.close()
            return {"has_left": True}
    return None


def main() -> None:
    given = json.load(sys.stdin)
    found = {}
    for name, case in given["scenarios"].items():
        try:
            found[name] = run(given, case)
        except litellm.exceptions.APIError as error:
            found[name] = {"status": error.status_code}
        except Exception as error:
            if not hasattr(error, "status_code"):
                raise
            found[name] = {"status": error.status_code}
    json.dump(found, sys.stdout)


main()
