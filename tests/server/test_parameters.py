"""Every sampling parameter has its effect on every route, by value.

A route's text for a parameter is the text that the engine gives for the same ``SamplingParams``,
and it is not the text without the parameter. The model is tiny and random, its logits are real.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.server.app import create_app
from pyvt.server.state import ServerState
from tests.engine.tiny_model import write_tiny_model
from tests.server.harness import Client, Reply

NUM_TOKENS = 12
MESSAGES = [{"role": "user", "content": "Hello"}]
PROMPT = "[user]Hello[assistant]"
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@dataclass(frozen=True)
class Route:
    """How a route is asked for its prompt, and where its text is."""

    path: str
    body: dict[str, Any]
    text: Callable[[dict[str, Any]], str]
    max_tokens: str = "max_tokens"
    stop: str = "stop"


ROUTES = {
    "chat": Route(
        "/v1/chat/completions",
        {"messages": MESSAGES},
        lambda body: body["choices"][0]["message"]["content"],
    ),
    "completions": Route(
        "/v1/completions", {"prompt": PROMPT}, lambda body: body["choices"][0]["text"]
    ),
    "responses": Route(
        "/v1/responses",
        {"input": "Hello"},
        lambda body: "".join(item["content"][0]["text"] for item in body["output"]),
        max_tokens="max_output_tokens",
    ),
    "messages": Route(
        "/v1/messages",
        {"messages": MESSAGES},
        lambda body: "".join(block["text"] for block in body["content"]),
        stop="stop_sequences",
    ),
}


class Tiny(Client):
    """A server of a tiny model; greedy, without an end, unless a request says otherwise."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm = llm
        config = ServerConfig(disable_uvicorn_access_log=True)
        state = ServerState(config=config, names=("tiny",))
        state.attach(llm)
        super().__init__(create_app(state))

    def text(self, params: SamplingParams) -> str:
        """Return what the engine itself answers."""

        async def run() -> str:
            async with self.llm.generate(PROMPT, params, is_stream=False) as stream:
                (output,) = [output async for output in stream]
            return output.outputs[0].text

        return asyncio.run(run())

    def ask(self, route: Route, **fields: Any) -> Reply:  # type: ignore[override]
        """Return the answer of a route, greedy unless the fields say otherwise."""
        renamed = {
            {"max_tokens": route.max_tokens, "stop": route.stop}.get(k, k): v
            for k, v in fields.items()
        }
        base = {route.max_tokens: NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        return asyncio.run(super().ask("POST", route.path, {**route.body, **base, **renamed}))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """One server for all parameters."""
    path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    server = Tiny(AsyncLLM(str(path)))
    yield server
    server.llm.thread.shutdown()


@pytest.fixture(scope="module")
def greedy_text(tiny: Tiny) -> str:
    """The text without any parameter."""
    return tiny.text(GREEDY)


SAMPLED = {"temperature": 5.0, "seed": 7}
# Name → fields of a request; the same are fields of SamplingParams.
CASES: dict[str, dict[str, Any]] = {
    "temperature": SAMPLED,
    "seed": {**SAMPLED, "seed": 8},
    "top_k": {**SAMPLED, "top_k": 3},
    "top_p": {**SAMPLED, "top_p": 0.3},
    "min_p": {**SAMPLED, "min_p": 0.5},
    "presence_penalty": {"presence_penalty": 2.0, "logit_bias": {65: 1.5}},
    "frequency_penalty": {"frequency_penalty": 2.0, "logit_bias": {65: 1.5}},
    "repetition_penalty": {"repetition_penalty": 5.0},
    "logit_bias": {"logit_bias": {65: 100.0}},
    "allowed_token_ids": {"allowed_token_ids": [65, 66]},
    "max_tokens": {"max_tokens": 5},
    "stop_token_ids": {"logit_bias": {65: 100.0}, "stop_token_ids": [65]},
    "min_tokens": {"logit_bias": {65: 100.0}, "stop_token_ids": [65], "min_tokens": 3},
    "ignore_eos": {"logit_bias": {3: 100.0}, "ignore_eos": False},
    "stop": {"logit_bias": {65: 100.0}, "stop": "three letters"},
    "include_stop_str_in_output": {
        "logit_bias": {65: 100.0},
        "stop": "three letters",
        "include_stop_str_in_output": True,
    },
    "bad_words": {"bad_words": "a letter of the greedy text"},
}
WITHOUT: dict[str, tuple[str, ...]] = {
    # What is left out to see the parameter's own effect; else all of them are.
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "stop_token_ids": ("stop_token_ids",),
    "min_tokens": ("min_tokens",),
    "stop": ("stop",),
    "include_stop_str_in_output": ("include_stop_str_in_output",),
}


def _letter(tiny: Tiny, token_id: int) -> str:
    return tiny.llm.engine.input_processor.tokenizer.decode([token_id])


def _fields(tiny: Tiny, name: str) -> dict[str, Any]:
    fields = dict(CASES[name])
    if "stop" in fields:
        fields["stop"] = [_letter(tiny, 65) * 3]
    if "bad_words" in fields:
        fields["bad_words"] = [next(c for c in tiny.text(GREEDY) if c.isascii())]
    return fields


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_parameter_has_its_effect(tiny: Tiny, greedy_text: str, route: Route, name: str) -> None:
    fields = _fields(tiny, name)
    expected = tiny.text(replace(GREEDY, **fields))
    left_out = WITHOUT.get(name, tuple(fields))
    rest = {k: v for k, v in fields.items() if k not in left_out}
    without = tiny.text(replace(GREEDY, **rest)) if rest else greedy_text
    sent = dict(fields)
    if "logit_bias" in sent:
        sent["logit_bias"] = {str(k): v for k, v in sent["logit_bias"].items()}

    reply = tiny.ask(route, **sent)

    assert reply.status == 200, reply.text
    assert route.text(reply.json()) == expected
    assert expected != without


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_narrowest_choice_is_greedy(tiny: Tiny, greedy_text: str, route: Route, name: str) -> None:
    narrow = {"top_k": 1, "top_p": 1e-9, "min_p": 1.0}[name]

    reply = tiny.ask(route, **{**SAMPLED, name: narrow})

    assert route.text(reply.json()) == greedy_text


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_text_of_a_bias_is_known(tiny: Tiny, route: Route) -> None:
    letter = _letter(tiny, 65)

    reply = tiny.ask(route, logit_bias={"65": 100})
    stopped = tiny.ask(route, logit_bias={"65": 100}, stop=[letter * 3], max_tokens=9)

    assert route.text(reply.json()) == letter * NUM_TOKENS
    assert route.text(stopped.json()) == ""


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "seed", "max_tokens", "stop"])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_null_is_absence(tiny: Tiny, greedy_text: str, route: Route, name: str) -> None:
    fields: dict[str, Any] = {name: None}
    if name == "temperature":
        fields = {"temperature": None, "top_k": 1}
    if name == "max_tokens":
        if route.path in ("/v1/messages", "/v1/completions"):
            return
        fields["logit_bias"] = {"65": 100}

    reply = tiny.ask(route, **fields)

    text = route.text(reply.json())
    if name == "max_tokens":
        assert text == _letter(tiny, 65) * (128 - len(PROMPT))
    else:
        assert text == greedy_text


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", bad) for bad in (-0.1, "1", [], 1e-9)],
        *[("top_p", bad) for bad in (0, 1.5, "x")],
        *[("top_k", bad) for bad in (-2, 1.5, "x")],
        *[("min_p", bad) for bad in (-1, 2)],
        *[("presence_penalty", bad) for bad in (-3, 3)],
        *[("frequency_penalty", bad) for bad in (-3, 3)],
        *[("repetition_penalty", bad) for bad in (0, -1)],
        *[("seed", bad) for bad in (2**64, 1.5, "x")],
        *[("logit_bias", bad) for bad in ({"x": 1}, {"-1": 1}, {"65": 101}, {"9999": 1}, [1])],
        *[("stop_token_ids", bad) for bad in ([-1], [9999], [2**63], ["x"], [1.5], 3)],
        *[("allowed_token_ids", bad) for bad in ([], [-1], [9999], ["x"])],
        *[("min_tokens", bad) for bad in (-1, 10_000)],
        *[("ignore_eos", bad) for bad in (1, "true")],
        *[("priority", bad) for bad in (2**40, 1.5)],
        *[("timeout_s", bad) for bad in (0, -1)],
    ],
)
def test_bad_value_is_a_400_that_names_it(tiny: Tiny, route: Route, name: str, value: Any) -> None:
    reply = tiny.ask(route, **{name: value})

    assert reply.status == 400
    told = reply.json()["error"]
    assert name in told["message"]
    if route.path != "/v1/messages":
        assert re.split(r"[.\[]", str(told["param"]))[0] == name


def test_echoed_prompt_has_the_engines_logprobs(tiny: Tiny) -> None:
    params = replace(GREEDY, logprobs=2, prompt_logprobs=2, max_tokens=3)

    async def run() -> RequestOutput:
        async with tiny.llm.generate(PROMPT, params, is_stream=False) as stream:
            (output,) = [output async for output in stream]
        return output

    output = asyncio.run(run())
    fields = {"echo": True, "logprobs": 2, "max_tokens": 3}
    choice = tiny.ask(ROUTES["completions"], **fields).json()["choices"][0]
    chunks = tiny.ask(ROUTES["completions"], stream=True, **fields).data()

    assert output.prompt_logprobs is not None
    assert output.outputs[0].logprobs is not None
    values = [p and p.taken.logprob for p in (*output.prompt_logprobs, *output.outputs[0].logprobs)]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == values
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert "".join(logprobs["tokens"][: len(PROMPT)]) == PROMPT
    assert logprobs["text_offset"][: len(PROMPT)] == list(range(len(PROMPT)))
    told = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    for name, values in logprobs.items():
        assert [value for part in told for value in part[name]] == values


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_settings_that_allow_nothing_are_the_clients_fault(tiny: Tiny, route: Route) -> None:
    letter = _letter(tiny, 65)

    reply = tiny.ask(route, allowed_token_ids=[65], bad_words=[letter])

    assert reply.status == 400, reply.text
    assert "at least one token" in reply.json()["error"]["message"]


def test_echo_alone_scores_a_prompt(tiny: Tiny) -> None:
    fields = {"echo": True, "logprobs": 1, "max_tokens": 0}

    body = tiny.ask(ROUTES["completions"], **fields).json()
    chunks = tiny.ask(ROUTES["completions"], stream=True, **fields).data()

    (choice,) = body["choices"]
    assert choice["text"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT)
    assert body["usage"]["completion_tokens"] == 0
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == PROMPT
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_prompt_logprobs_are_told_by_id(tiny: Tiny, name: str) -> None:
    body = tiny.ask(ROUTES[name], prompt_logprobs=2).json()
    found = body["prompt_logprobs"] if name == "chat" else body["choices"][0]["prompt_logprobs"]

    assert found[0] is None
    assert len(found) == len(PROMPT)
    assert all(2 <= len(entry) <= 3 for entry in found[1:])
    assert {entry["rank"] for entry in found[1].values()} >= {1, 2}
    assert tiny.ask(ROUTES[name], prompt_logprobs=2, stream=True).status == 400
