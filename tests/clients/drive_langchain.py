"""Drives langchain-openai; see ``test_clients`` for what comes in and goes out."""

import json
import math
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def model(given: dict[str, Any], case: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {}
    if "temperature" in case:
        settings["temperature"] = case["temperature"]
    if case["text"] is not None:
        settings["extra_body"] = {"forced_token_ids": case["ids"]}
    return ChatOpenAI(
        model=case["model"] or given["model"],
        base_url=f"{given['url']}/v1",
        api_key=case.get("key", given["key"]),
        max_tokens=case["max_tokens"],
        max_retries=0,
        timeout=300,
        **settings,
    )


def chat(given: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    runnable = model(given, case)
    if case.get("has_tools"):
        tools = [{"type": "function", "function": given["tool"]}]
        choice = {"tool_choice": case["choice"]} if "choice" in case else {}
        single = {"parallel_tool_calls": False} if choice else {}
        runnable = runnable.bind_tools(tools, **choice, **single)
    if "stop" in case:
        runnable = runnable.bind(stop=case["stop"])
    if case["is_stream"]:
        parts = list(runnable.stream(case["messages"]))
        done = parts[0]
        for part in parts[1:]:
            done = done + part
    else:
        done = runnable.invoke(case["messages"])
    calls = [[call["name"], call["args"]] for call in done.tool_calls]
    # ChatOpenAI drops reasoning.
    return {
        "text": done.content,
        "calls": calls,
        "names": [name for name, _ in calls],
        "end": done.response_metadata["finish_reason"],
    }


def run(given: dict[str, Any], case: dict[str, Any]) -> Any:
    match case["kind"]:
        case "chat":
            return chat(given, case)
        case "schema":
            structured = model(given, case).with_structured_output(Person, method="json_schema")
            return {"is_person": isinstance(structured.invoke(case["messages"]), Person)}
        case "leaves":
            stream = model(given, case).stream(case["messages"])
            next(iter(stream))
            stream.close()
            return {"has_left": True}
        case "embedding":
            made = OpenAIEmbeddings(
                model=given["model"],
                base_url=f"{given['url']}/v1",
                api_key=given["key"],
                check_embedding_ctx_length=False,
            )
            vectors = made.embed_documents(case["inputs"])
            lengths = [math.hypot(*vector) for vector in vectors]
            return {"count": len(vectors), "is_unit": all(abs(x - 1) < 1e-3 for x in lengths)}
    return None


def main() -> None:
    given = json.load(sys.stdin)
    found = {}
    for name, case in given["scenarios"].items():
        try:
            found[name] = run(given, case)
        except openai.APIStatusError as error:
            found[name] = {"status": error.status_code}
    json.dump(found, sys.stdout)


main()
