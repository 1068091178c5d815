"""Drives openai-python; see ``test_clients`` for what comes in and goes out."""

import json
import math
import sys
from typing import Any

import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def options(given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    found = {"model": case["model"] or given["model"], "max_tokens": case["max_tokens"]}
    found |= {name: case[name] for name in ("messages", "stop", "temperature") if name in case}
    if case.get("has_tools"):
        found["tools"] = [{"type": "function", "function": given["tool"]}]
    if "choice" in case:
        found |= {"tool_choice": case["choice"], "parallel_tool_calls": False}
    if case["text"] is not None:
        found["extra_body"] = {"forced_token_ids": case["ids"]}
    return found


def outcome(completion: Any) -> dict[str, Any]:
    (choice,) = completion.choices
    message = choice.message
    assert completion.usage.completion_tokens > 0
    assert completion.usage.total_tokens > completion.usage.completion_tokens
    calls = [
        [call.function.name, json.loads(call.function.arguments)]
        for call in message.tool_calls or ()
    ]
    return {
        "text": message.content or "",
        "reasoning": (message.model_extra or {}).get("reasoning_content"),
        "calls": calls,
        "names": [name for name, _ in calls],
        "end": choice.finish_reason,
    }


def chat(client: openai.OpenAI, given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    asked = options(given, case)
    if not case["is_stream"]:
        return outcome(client.chat.completions.create(**asked))
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        try:
            return outcome(stream.get_final_completion())
        except openai.LengthFinishReasonError as error:
            return outcome(error.completion)


def response(client: openai.OpenAI, given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    asked = {
        "model": given["model"],
        "input": "Hi",
        "max_output_tokens": case["max_tokens"],
        "extra_body": {"forced_token_ids": case["ids"]},
    }
    if not case["is_stream"]:
        return {"text": client.responses.create(**asked).output_text}
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        return {"text": stream.get_final_response().output_text}


def run(client: openai.OpenAI, given: dict[str, Any], case: dict[str, Any]) -> Any:
    match case["kind"]:
        case "chat":
            return chat(client, given, case)
        case "schema":
            asked = options(given, case)
            done = client.chat.completions.parse(**asked, response_format=Person)
            return {"is_person": isinstance(done.choices[0].message.parsed, Person)}
        case "leaves":
            stream = client.chat.completions.create(**options(given, case), stream=True)
            next(iter(stream))
            stream.close()
            return {"has_left": True}
        case "models":
            return {"has_model": given["model"] in [m.id for m in client.models.list()]}
        case "completion":
            done = client.completions.create(
                model=given["model"],
                prompt=case["prompt"],
                max_tokens=20,
                echo=True,
                extra_body={"forced_token_ids": case["ids"]},
            )
            return {"text": done.choices[0].text, "end": done.choices[0].finish_reason}
        case "response":
            return response(client, given, case)
        case "embedding":
            data = client.embeddings.create(model=given["model"], input=case["inputs"]).data
            lengths = [math.hypot(*item.embedding) for item in data]
            return {"count": len(data), "is_unit": all(abs(x - 1) < 1e-3 for x in lengths)}
    return None


def main() -> None:
    given = json.load(sys.stdin)
    found = {}
    for name, case in given["scenarios"].items():
        client = openai.OpenAI(
            base_url=f"{given['url']}/v1",
            api_key=case.get("key", given["key"]),
            max_retries=0,
            timeout=300,
        )
        try:
            found[name] = run(client, given, case)
        except openai.APIStatusError as error:
            found[name] = {"status": error.status_code}
    json.dump(found, sys.stdout)


main()
