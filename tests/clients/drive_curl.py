"""Drives curl; see ``test_clients`` for what comes in and goes out."""

import json
import math
import subprocess
import sys
from typing import Any


def curl(given: dict[str, Any], path: str, body: Any, key: str, *more: str) -> tuple[int, str]:
    command = ["curl", "-sS", "-N", "-w", "\n%{http_code}", f"{given['url']}{path}", *more]
    command += ["-H", f"Authorization: Bearer {key}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    data = None if body is None else json.dumps(body).encode()
    done = subprocess.run(command, input=data, capture_output=True, timeout=300)
    text, _, status = done.stdout.decode().rpartition("\n")
    return int(status), text


def options(given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    found = {"model": case["model"] or given["model"], "max_tokens": case["max_tokens"]}
    found |= {name: case[name] for name in ("messages", "stop", "temperature") if name in case}
    if case.get("has_tools"):
        found["tools"] = [{"type": "function", "function": given["tool"]}]
    if "choice" in case:
        found |= {"tool_choice": case["choice"], "parallel_tool_calls": False}
    if case["text"] is not None:
        found["forced_token_ids"] = case["ids"]
    if case["is_stream"]:
        found["stream"] = True
    return found


def outcome(text: str, is_stream: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "", "reasoning": None, "calls": [], "end": None}
    if is_stream:
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        choices = [c for event in events for c in json.loads(event)["choices"]]
    else:
        choices = json.loads(text)["choices"]
    calls: list[list[str]] = []
    for choice in choices:
        part = choice["delta"] if is_stream else choice["message"]
        said["text"] += part.get("content") or ""
        if part.get("reasoning_content"):
            said["reasoning"] = (said["reasoning"] or "") + part["reasoning_content"]
        for call in part.get("tool_calls") or ():
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"]["arguments"]
        said["end"] = choice["finish_reason"] or said["end"]
    said["calls"] = [[name, json.loads(arguments)] for name, arguments in calls]
    return {**said, "names": [name for name, _ in calls]}


def run(given: dict[str, Any], case: dict[str, Any]) -> Any:
    key = case.get("key", given["key"])
    match case["kind"]:
        case "chat":
            status, text = curl(given, "/v1/chat/completions", options(given, case), key)
            return {"status": status} if status != 200 else outcome(text, case["is_stream"])
        case "schema":
            form = {"type": "json_schema", "json_schema": {"schema": given["person"]}}
            body = {**options(given, case), "response_format": form}
            _, text = curl(given, "/v1/chat/completions", body, key)
            person = json.loads(json.loads(text)["choices"][0]["message"]["content"])
            return {"is_person": person.keys() == {"name", "age"}}
        case "leaves":
            body = {**options(given, case), "stream": True}
            curl(given, "/v1/chat/completions", body, key, "--max-time", "0.05")
            return {"has_left": True}
        case "models":
            _, text = curl(given, "/v1/models", None, key)
            return {"has_model": given["model"] in [m["id"] for m in json.loads(text)["data"]]}
        case "completion":
            body = {"prompt": case["prompt"], "max_tokens": 20, "echo": True}
            _, text = curl(given, "/v1/completions", {**body, "forced_token_ids": case["ids"]}, key)
            (choice,) = json.loads(text)["choices"]
            return {"text": choice["text"], "end": choice["finish_reason"]}
        case "embedding":
            _, text = curl(given, "/v1/embeddings", {"input": case["inputs"]}, key)
            vectors = [item["embedding"] for item in json.loads(text)["data"]]
            lengths = [math.hypot(*vector) for vector in vectors]
            return {"count": len(vectors), "is_unit": all(abs(x - 1) < 1e-3 for x in lengths)}
        case "count":
            body = {"messages": case["messages"]}
            _, text = curl(given, "/v1/messages/count_tokens", body, key)
            return {"has_tokens": json.loads(text)["input_tokens"] > 0}
    return None


given = json.load(sys.stdin)
json.dump({name: run(given, case) for name, case in given["scenarios"].items()}, sys.stdout)
