"""Drives anthropic-python; see ``test_clients`` for what comes in and goes out."""

import json
import sys
from typing import Any

import anthropic

ENDS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}


def message(said: dict[str, Any]) -> dict[str, Any]:
    if said["role"] == "tool":
        block = {
            "type": "tool_result",
            "tool_use_id": said["tool_call_id"],
            "content": said["content"],
        }
        return {"role": "user", "content": [block]}
    if said.get("tool_calls"):
        blocks = [
            {
                "type": "tool_use",
                "id": call["id"],
                "name": call["function"]["name"],
                "input": json.loads(call["function"]["arguments"]),
            }
            for call in said["tool_calls"]
        ]
        return {"role": "assistant", "content": blocks}
    return said


def options(given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    system = [said["content"] for said in case["messages"] if said["role"] == "system"]
    rest = [message(said) for said in case["messages"] if said["role"] != "system"]
    found = {
        "model": case["model"] or given["model"],
        "max_tokens": case["max_tokens"],
        "messages": rest,
    }
    if system:
        found["system"] = system[0]
    if "stop" in case:
        found["stop_sequences"] = case["stop"]
    if case.get("has_tools"):
        tool = given["tool"]
        found["tools"] = [
            {
                "name": tool["name"],
                "description": tool["description"],
                "input_schema": tool["parameters"],
            }
        ]
    if "choice" in case:
        found["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    more = {} if case["text"] is None else {"forced_token_ids": case["ids"]}
    if "temperature" in case:
        more["temperature"] = case["temperature"]
    found["extra_body"] = more
    return found


def outcome(done: Any) -> dict[str, Any]:
    assert done.usage.output_tokens > 0
    blocks = {kind: [b for b in done.content if b.type == kind] for kind in ("text", "thinking")}
    calls = [[b.name, b.input] for b in done.content if b.type == "tool_use"]
    return {
        "text": "".join(b.text for b in blocks["text"]),
        "reasoning": "".join(b.thinking for b in blocks["thinking"]) or None,
        "calls": calls,
        "names": [name for name, _ in calls],
        "end": ENDS[done.stop_reason],
    }


def run(client: anthropic.Anthropic, given: dict[str, Any], case: dict[str, Any]) -> Any:
    match case["kind"]:
        case "chat" if case["is_stream"]:
            with client.messages.stream(**options(given, case)) as stream:
                return outcome(stream.get_final_message())
        case "chat":
            return outcome(client.messages.create(**options(given, case)))
        case "leaves":
            with client.messages.stream(**options(given, case)) as stream:
                next(iter(stream.text_stream))
            return {"has_left": True}
        case "models":
            return {"has_model": given["model"] in [m.id for m in client.models.list()]}
        case "count":
            done = client.messages.count_tokens(model=given["model"], messages=case["messages"])
            return {"has_tokens": done.input_tokens > 0}
    return None


def main() -> None:
    given = json.load(sys.stdin)
    found = {}
    for name, case in given["scenarios"].items():
        client = anthropic.Anthropic(
            base_url=given["url"],
            api_key=case.get("key", given["key"]),
            max_retries=0,
            timeout=300,
        )
        try:
            found[name] = run(client, given, case)
        except anthropic.APIStatusError as error:
            found[name] = {"status": error.status_code}
    json.dump(found, sys.stdout)


main()
