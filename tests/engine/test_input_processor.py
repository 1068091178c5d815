"""InputProcessor: what is refused, with which param, and how limits are resolved."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.errors import RequestError
from pyvt.sampling_params import SamplingParams
from pyvt.testing.fakes import FakeTokenizer
from pyvt.tokenizer import ChatTemplate
from pyvt.tokenizer.base import RenderedPrompt

PROCESSOR = InputProcessor(
    FakeTokenizer(),
    None,
    InputLimits(vocab_size=260, max_model_len=100, eos_token_ids=frozenset({256, 259})),
)
NOT_IDS = [-1, 260, 300, 2**31, 2**63, "x", 1.5, float("nan"), True, None]


def process(prompt: Any, **params: Any) -> Any:
    return PROCESSOR.process("a", prompt, SamplingParams(**params), 1.5)


def test_process_text_becomes_a_request() -> None:
    request = process("hi", max_tokens=5, seed=3)

    assert (request.prompt, request.prompt_token_ids) == ("hi", tuple(b"hi"))
    assert (request.request_id, request.arrival_s) == ("a", 1.5)
    assert request.eos_token_ids == {256, 259}
    assert (request.sampling_params.max_tokens, request.sampling_params.seed) == (5, 3)


def test_process_ids_keep_no_text() -> None:
    request = process([0, 259])

    assert (request.prompt, request.prompt_token_ids) == (None, (0, 259))


def test_process_rendered_prompt_keeps_its_text() -> None:
    assert process(RenderedPrompt("hé", "hé")).prompt == "hé"


def test_process_max_tokens_none_is_the_rest_of_the_context() -> None:
    assert process("x" * 60).sampling_params.max_tokens == 40


def test_process_prompt_and_answer_may_fill_the_context() -> None:
    assert process("x" * 60, max_tokens=40).sampling_params.max_tokens == 40


@pytest.mark.parametrize(
    ("length", "params", "param", "text"),
    [
        (50, {"max_tokens": 60}, "max_tokens", "50 prompt tokens and 60 new ones .* of 100"),
        (100, {}, "prompt", "100 tokens leave no room .* context of 100"),
        (250, {"max_tokens": 1}, "prompt", "250 tokens leave no room .* context of 100"),
        (99, {"min_tokens": 2}, "min_tokens", "at most max_tokens=1, got 2"),
    ],
)
def test_process_too_long_is_refused_with_both_numbers(
    length: int, params: dict[str, Any], param: str, text: str
) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        process("x" * length, **params)

    assert refused.value.param == param


@pytest.mark.parametrize("token_id", NOT_IDS)
def test_process_prompt_id_outside_the_vocabulary_is_refused(token_id: Any) -> None:
    with pytest.raises(RequestError, match="from 0 up to 259") as refused:
        process([1, token_id])

    assert refused.value.param == "prompt"


@pytest.mark.parametrize("param", ["stop_token_ids", "allowed_token_ids", "banned_token_ids"])
@pytest.mark.parametrize("token_id", NOT_IDS)
def test_process_id_of_a_setting_outside_the_vocabulary_is_refused(
    param: str, token_id: Any
) -> None:
    with pytest.raises(RequestError) as refused:
        process("x", **{param: [token_id]})

    assert refused.value.param == param


@pytest.mark.parametrize("token_id", [-1, 260, 2**63, "AI", 1.5, None])
def test_process_logit_bias_key_outside_the_vocabulary_is_refused(token_id: Any) -> None:
    with pytest.raises(RequestError) as refused:
        process("x", logit_bias={token_id: 1.0})

    assert refused.value.param == "logit_bias"


def test_process_last_id_of_the_vocabulary_is_allowed_everywhere() -> None:
    params = {name: [259] for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids")}

    request = process([259], logit_bias={259: 1.0}, **params)

    assert request.sampling_params.stop_token_ids == (259,)


@pytest.mark.parametrize("prompt", [np.array([1.5]), np.array([[1, 2]]), np.array([300])])
def test_process_array_that_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError, match="from 0 up to 259"):
        process(prompt)


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_process_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError, match="at least one token"):
        process(prompt)


@pytest.mark.parametrize(
    "prompt", [None, 5, 1.5, b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), {"a": 1}]
)
def test_process_prompt_of_a_wrong_type_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError) as refused:
        process(prompt)

    assert refused.value.param == "prompt"


@pytest.mark.parametrize("params", [None, {"temperature": 1}, "x"])
def test_process_params_of_a_wrong_type_are_refused(params: Any) -> None:
    with pytest.raises(RequestError) as refused:
        PROCESSOR.process("a", "hi", params, 1.5)

    assert refused.value.param == "sampling_params"


def test_process_lone_surrogate_is_refused() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        process("a\ud83d")


def test_process_ignore_eos_leaves_no_end_ids() -> None:
    assert process("x", ignore_eos=True).eos_token_ids == frozenset()


def test_process_seed_none_becomes_a_random_one() -> None:
    seeds = {process("x").sampling_params.seed for _ in range(4)}

    assert len(seeds) == 4


def test_process_negative_seed_is_taken_modulo_two_to_64() -> None:
    assert process("x", seed=-1).sampling_params.seed == 2**64 - 1


def test_process_timeout_becomes_a_deadline_on_the_engines_clock() -> None:
    request = PROCESSOR.process("a", "x", SamplingParams(), 1.5, priority=-3, timeout_s=2)

    assert (request.priority, request.deadline_s) == (-3, 3.5)


def test_time_that_has_passed_before_the_arrival_is_taken_from_the_deadline() -> None:
    request = PROCESSOR.process("a", "x", SamplingParams(), 1.5, timeout_s=2, waited_s=0.5)

    assert (request.arrival_s, request.deadline_s) == (1.5, 3.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("timeout_s", value) for value in (0, -1, float("nan"), float("inf"), 1e10, "1", True)],
        *[("priority", value) for value in (1.0, 2**40, "1", None, True)],
    ],
)
def test_process_urgency_of_a_wrong_form_is_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"\[request\] {name}: expected") as refused:
        PROCESSOR.process("a", "x", SamplingParams(), 1.5, **{name: value})

    assert refused.value.param == name


def test_tokenize_several_texts_says_that_one_prompt_is_wanted() -> None:
    with pytest.raises(RequestError, match="prompt: expected one prompt, a string or a list of"):
        PROCESSOR.tokenize(cast(Any, ["a", "b"]))


def test_render_of_a_text_shows_what_messages_are() -> None:
    processor = InputProcessor(FakeTokenizer(), FakeTemplate, PROCESSOR.limits)

    with pytest.raises(RequestError, match=r"a list such as \[\{'role': 'user'.*got 'hi'"):
        processor.render(cast(Any, "hi"))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role"),
        ([{"role": 1, "content": "b"}], "messages[0].role"),
        ([{"role": "user", "content": "\ud83d"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}],
            "messages[0].content[0].text",
        ),
    ],
)
def test_render_messages_of_a_wrong_form_are_refused(messages: Any, param: str) -> None:
    processor = InputProcessor(FakeTokenizer(), FakeTemplate, PROCESSOR.limits)

    with pytest.raises(RequestError) as refused:
        processor.render(messages)

    assert refused.value.param == param


def test_render_parts_of_text_are_lines_of_one_text() -> None:
    seen: list[Any] = []

    class Template:
        def render(self, messages: Any, **kwargs: Any) -> RenderedPrompt:
            seen.extend(messages)
            return RenderedPrompt("text", "text")

    processor = InputProcessor(FakeTokenizer(), Template, PROCESSOR.limits)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    calls = {"role": "assistant", "tool_calls": [{}]}

    processor.render([{"role": "user", "content": parts, "name": "x"}, calls])

    assert seen == [{"role": "user", "content": "a\nb", "name": "x"}, calls]


def test_render_without_a_template_is_refused() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        PROCESSOR.render([{"role": "user", "content": "hi"}])


class FakeTemplate:
    def render(self, messages: Any, **kwargs: Any) -> RenderedPrompt:
        raise AssertionError("a refused message reached the template")


@pytest.mark.parametrize("variables", [5, [("a", 1)], {5: 1}])
def test_render_variables_of_a_wrong_form_are_refused(variables: Any) -> None:
    processor = InputProcessor(FakeTokenizer(), FakeTemplate, PROCESSOR.limits)

    with pytest.raises(RequestError) as refused:
        processor.render([{"role": "user", "content": "hi"}], chat_template_kwargs=variables)

    assert refused.value.param == "chat_template_kwargs"


def test_render_variable_of_any_name_reaches_the_template() -> None:
    template = ChatTemplate.for_tokenizer({"default": "{{ self_ }}{{ x }}"}, FakeTokenizer())
    processor = InputProcessor(FakeTokenizer(), lambda: template, PROCESSOR.limits)

    rendered = processor.render(
        [{"role": "user", "content": "hi"}], chat_template_kwargs={"self": 1, "x": "y"}
    )

    assert rendered.text == "y"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
def test_render_template_variable_that_is_an_argument_is_refused(name: str) -> None:
    template = ChatTemplate.for_tokenizer({"default": "x"}, FakeTokenizer())
    processor = InputProcessor(FakeTokenizer(), lambda: template, PROCESSOR.limits)

    with pytest.raises(RequestError, match=f"names that pyvt does not set itself, got '{name}'"):
        processor.render([{"role": "user", "content": "hi"}], chat_template_kwargs={name: []})


def test_process_bad_words_are_banned_with_and_without_a_space_before_them() -> None:
    request = process("x", bad_words=["ab", " ab", " c", "é"])

    assert request.constraints.bad_words == (
        (97, 98),
        (32, 97, 98),
        (32, 99),
        (99,),
        tuple("é".encode()),
        (32, *"é".encode()),
    )


@pytest.mark.parametrize("word", [" ", "\n\t", "\ud83d"])
def test_process_bad_word_without_characters_is_refused(word: str) -> None:
    with pytest.raises(RequestError) as refused:
        process("x", bad_words=[word])

    assert refused.value.param == "bad_words"


@pytest.mark.parametrize("request_id", [None, 5, [1], b"a"])
def test_process_id_that_is_no_text_is_refused(request_id: Any) -> None:
    with pytest.raises(RequestError, match=r"\[request\] request_id: expected a string") as refused:
        PROCESSOR.process(request_id, "hi", SamplingParams(), 1.5)

    assert refused.value.param == "request_id"


def test_first_requests_of_several_threads_share_one_grammar_compiler() -> None:
    made: list[Any] = []

    def make() -> Any:
        time.sleep(0.01)
        made.append(object())
        return made[-1]

    processor = InputProcessor(FakeTokenizer(), None, PROCESSOR.limits, make)
    assert processor.grammars is not None
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: processor.grammars and processor.grammars(), range(8)))

    assert found == made * 8
