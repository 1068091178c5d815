"""Chat templates: byte for byte what transformers renders, and the errors of templates."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.testing.chats import CONVERSATIONS, SPECIALS, TEMPLATES, WEATHER_TOOL
from pyvt.tokenizer import ChatTemplate, Tokenizer

USER = [{"role": "user", "content": "Hello"}]
CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
LLAMA_CONTROL = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>")
ALL = [pytest.param(t, c, id=f"{t}-{c}") for t in TEMPLATES for c in CONVERSATIONS]


def golden(goldens_root: Path, template: str) -> dict[str, Any]:
    """Return conversation → what transformers gave."""
    path = goldens_root / "tokenizer" / f"render_{template}.json"
    return dict(json.loads(path.read_text())["cases"])


def chat_template(source: str, **specials: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, specials, control_texts=CONTROL)


def render(source: str, messages: Any = USER, **variables: Any) -> str:
    """Render with a template of the test."""
    return chat_template(source).render(messages, **variables).text


@pytest.mark.parametrize("control", [(), CONTROL + LLAMA_CONTROL], ids=["unguarded", "guarded"])
@pytest.mark.parametrize(("template", "conversation"), ALL)
def test_render_equals_transformers(
    template: str, conversation: str, control: tuple[str, ...], goldens_root: Path
) -> None:
    want = golden(goldens_root, template)[conversation]
    templates = ChatTemplate({"default": TEMPLATES[template]}, SPECIALS, control_texts=control)

    if "error" in want:
        with pytest.raises(RequestError):
            templates.render(**CONVERSATIONS[conversation])
    else:
        assert templates.render(**CONVERSATIONS[conversation]).text == want["text"]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_qwen3_text_and_ids_equal_transformers(
    conversation: str, qwen3: Tokenizer, qwen3_template: ChatTemplate, goldens_root: Path
) -> None:
    want = golden(goldens_root, "qwen3")[conversation]

    rendered = qwen3_template.render(**CONVERSATIONS[conversation])

    assert rendered.text == want["text"]
    assert qwen3.encode_rendered(rendered) == want["ids"]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_smollm2_template_of_the_file_equals_transformers(
    conversation: str, smollm2: Tokenizer, smollm2_metadata: dict[str, Any], goldens_root: Path
) -> None:
    templates = {"default": smollm2_metadata["tokenizer.chat_template"]}
    smollm2_template = ChatTemplate.for_tokenizer(templates, smollm2)

    rendered = smollm2_template.render(**CONVERSATIONS[conversation])

    assert rendered.text == golden(goldens_root, "smollm2")[conversation]["text"]
    assert smollm2.encode_rendered(rendered) == smollm2.encode(rendered.text)


def test_goldens_cover_twelve_conversations_of_six_templates(goldens_root: Path) -> None:
    files = sorted((goldens_root / "tokenizer").glob("render_*.json"))
    texts = [c for f in files for c in json.loads(f.read_text())["cases"].values() if "text" in c]

    assert len(files) == 6
    assert len(CONVERSATIONS) >= 12
    assert len(texts) >= 66


def test_messages_are_not_changed() -> None:
    messages = [{"role": "assistant", "content": "<think>\na\n</think>\n\n<b>", "name": None}]
    before = json.dumps(messages)

    render(TEMPLATES["xml_tools"], messages)

    assert json.dumps(messages) == before


def test_preview_is_a_fixed_chat(qwen3_template: ChatTemplate) -> None:
    assert qwen3_template.preview().startswith("<|im_start|>user\nHello<|im_end|>\n")
    assert qwen3_template.preview() == qwen3_template.preview()


def test_select_takes_tool_use_only_with_tools() -> None:
    templates = ChatTemplate({"default": "d", "tool_use": "t"}, {}, control_texts=())

    assert templates.render(USER).text == "d"
    assert templates.render(USER, tools=[]).text == "d"
    assert templates.render(USER, tools=[WEATHER_TOOL]).text == "t"
    assert templates.names == ("default", "tool_use")


def test_select_takes_the_only_template_whatever_its_name() -> None:
    assert ChatTemplate({"rag": "r"}, {}, control_texts=()).render(USER).text == "r"


@pytest.mark.parametrize(
    ("names", "got"), [((), "none"), (("rag", "tool_use"), "rag, tool_use")], ids=["none", "others"]
)
def test_select_without_a_default_is_refused(names: tuple[str, ...], got: str) -> None:
    templates = ChatTemplate(dict.fromkeys(names, "x"), {}, control_texts=())

    with pytest.raises(RequestError, match=f"got {got}; send a prompt") as caught:
        templates.render(USER)

    assert caught.value.code == "no_chat_template"


@pytest.mark.parametrize(
    ("source", "want"),
    [
        pytest.param("{% generation %}a{% endgeneration %}b", "ab", id="generation"),
        pytest.param("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
                     "{% endfor %}", "012", id="break"),
        pytest.param("  {% if true %}\na\n  {% endif %}\nb", "a\nb", id="trim and lstrip blocks"),
        pytest.param("{{ {'a': '<é>&\"'} | tojson }}", '{"a": "<é>&\\""}', id="tojson"),
        pytest.param("{{ [1] | tojson(indent=2) }}", "[\n  1\n]", id="tojson indent"),
        pytest.param("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"', id="tojson ascii"),
        pytest.param("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
                     '{"a":2,"b":1}', id="tojson separators"),
        pytest.param("{{ messages[::-1][0] is mapping }}", "True", id="slice and mapping"),
        pytest.param("{{ dict(a=1) }}{{ [1, 'x', none] }}", "{'a': 1}[1, 'x', None]", id="repr"),
        pytest.param("{% set ns = namespace(n=1) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}"
                     "{% endfor %}{{ ns.n }}", "4", id="namespace"),
        pytest.param("{{ [3, 1] | sort | join(', ') }}{{ '%s-%03d' | format('a', 7) }}",
                     "1, 3a-007", id="filters"),
        pytest.param("{{ 'a-b'.split('-')[-1].upper() ~ 1.5 ~ none }}", "B1.5None", id="methods"),
        pytest.param("{{ ['<b>'] }}{{ ('<b>' | upper) }}", "['<b>']<B>", id="guarded forms"),
        pytest.param("{{ ns }}{{ missing }}{{ x.y is defined }}", None, id="undefined attribute"),
        pytest.param("{{ strftime_now('%Y') | length }}", "4", id="strftime_now"),
        pytest.param("{{ documents is none }}{{ tools is none }}", "TrueTrue", id="none"),
    ],
)  # fmt: skip
def test_environment_is_that_of_transformers(source: str, want: str | None) -> None:
    if want is None:
        with pytest.raises(RequestError, match="'x' is undefined"):
            render(source)
    else:
        assert render(source) == want


def test_caller_s_markup_reaches_filters_as_written() -> None:
    messages = [{"role": "user", "content": "a <b> & c"}]
    data = (
        "{{ [messages[0].content] }}|{{ messages[0].content | e }}|{{ {'k': messages} | tojson }}"
    )

    got = render(data + "|{{ messages[0].content.upper() }}", messages)

    listed = json.dumps({"k": messages})
    assert got == f"['a <b> & c']|a &lt;b&gt; &amp; c|{listed}|A <B> & C"


def test_special_tokens_are_variables_of_the_template() -> None:
    rendered = chat_template("{{ bos_token }}{{ eos_token is defined }}", bos_token="<s>").render(
        USER
    )

    assert rendered.text == "<s>False"


def test_kwargs_are_variables_of_the_template() -> None:
    assert (
        render("{{ enable_thinking }}{{ note }}", enable_thinking=False, note="<b>") == "False<b>"
    )


def test_kwargs_do_not_replace_special_tokens() -> None:
    with pytest.raises(RequestError, match="chat_template_kwargs: 'bos_token' is set by pyvt"):
        chat_template("x", bos_token="<s>").render(USER, bos_token="<|im_end|>")


def test_template_of_the_kwargs_is_ignored(qwen3_template: ChatTemplate) -> None:
    """A request brings no template of its own."""
    got = qwen3_template.render(USER, chat_template="{{ range(10**9) }}")

    assert got.text == qwen3_template.render(USER).text


def test_template_s_own_message_is_the_error() -> None:
    with pytest.raises(RequestError, match=r"\[chat\] template: need a user & more") as caught:
        render("{{ raise_exception('need a user & more') }}")

    assert caught.value.param == "messages"
    assert caught.value.code == "chat_template"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("a\n{% if %}", r"template: .* \(line 2\)", id="syntax"),
        pytest.param("{{ 1 | no_such }}", "No filter named 'no_such'", id="filter"),
        pytest.param("{{ messages[9].role }}", "has no element 9", id="undefined"),
        pytest.param("{{ 'a' + 1 }}", "concatenate", id="type"),
        pytest.param("{{ 1 // 0 }}", "by zero", id="arithmetic"),
        pytest.param("{% include 'x' %}", "no loader", id="include"),
        pytest.param("{{ ''.__class__.__mro__ }}", "unsafe", id="internals"),
        pytest.param("{{ messages.append(1) }}", "not safely callable|unsafe", id="mutation"),
        pytest.param("{% set ns = namespace(__class__=1) %}", "begins with '_'", id="namespace"),
        pytest.param(
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion", id="recursion"
        ),
        pytest.param("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "template: ", id="deep"),
        pytest.param("x" * 100_001, "at most 100000 characters", id="long"),
    ],
)
def test_template_faults_are_request_errors(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(source)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        pytest.param("Hello", "messages: expected a list of messages, got str", id="text"),
        pytest.param(["Hello"], r"messages\[0\]: expected an object", id="text in a list"),
        pytest.param([{"content": "x"}], r"messages\[0\]\.role: expected a string", id="no role"),
        pytest.param([{"role": 1}], r"messages\[0\]\.role: expected a string, got 1", id="role"),
        pytest.param(
            [{"role": "user", "content": object()}],
            r"messages\[0\]: .* object of object",
            id="object",
        ),
    ],
)
def test_messages_of_a_wrong_form_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render("x", messages)


def test_deep_messages_are_refused() -> None:
    content: Any = []
    for _ in range(100):
        content = [content]

    with pytest.raises(RequestError, match="at most 64 levels"):
        render("x", [{"role": "user", "content": content}])


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_has_three_names(name: str) -> None:
    messages = [{"role": "assistant", "content": "a", name: "why"}]

    assert render("{{ messages[0].reasoning_content }}", messages) == "why"


def test_none_is_the_same_as_absent() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": None}]

    assert render("{{ 'content' in messages[0] }}", messages) == "False"


def test_tool_calls_without_content_are_rendered_where_transformers_fails(
    qwen3_template: ChatTemplate,
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    filled = [chat[0], {**chat[1], "content": ""}]

    assert qwen3_template.render(chat) == qwen3_template.render(filled)
    with pytest.raises(RequestError, match="no attribute 'content'"):
        qwen3_template.render([{"role": "user"}])
