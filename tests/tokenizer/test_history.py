"""Reasoning that an assistant message carries in its content."""

import pytest

from pyvt.errors import RequestError
from pyvt.tokenizer.history import plain_messages, split_reasoning, with_split_reasoning


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param("<think>\na\n</think>\n\nb", ("a", "b"), id="as models write it"),
        pytest.param("\n<think>a</think>b", ("a", "b"), id="no line ends"),
        pytest.param("<think>\n\n</think>\n\nb", ("", "b"), id="empty"),
        pytest.param("a\n</think>\n\nb", ("a", "b"), id="opened by the template"),
        pytest.param("a\n</think>", ("a", ""), id="nothing after"),
        pytest.param("<think>a</think>b</think>c", ("a", "b</think>c"), id="first end counts"),
        pytest.param("Write </think> to end.", None, id="in prose"),
        pytest.param("x <think>\na\n</think>\nb", None, id="not from the start"),
        pytest.param("<think>\na", None, id="not closed"),
        pytest.param("plain", None, id="none"),
    ],
)
def test_split_reasoning(content: str, want: tuple[str, str] | None) -> None:
    assert split_reasoning(content) == want


def test_keys_that_are_no_names_are_refused() -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]: expected names as keys, got 5"):
        plain_messages([{"role": "user", "content": {5: "x"}}])


def test_only_assistants_have_reasoning() -> None:
    content = "<think>\na\n</think>\n\nb"
    user = {"role": "user", "content": content}
    known = {"role": "assistant", "content": content, "reasoning_content": "r"}
    assistant = {"role": "assistant", "content": content}

    assert with_split_reasoning(user) is user
    assert with_split_reasoning(known) is known
    assert with_split_reasoning(assistant)["content"] == "b"
    assert with_split_reasoning(assistant)["reasoning_content"] == "a"
