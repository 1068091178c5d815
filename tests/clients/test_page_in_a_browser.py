"""The page in Chromium, over a true server: each of its parts used as a person would.

``PYVT_PAGE_PICTURES=docs/images`` writes the pictures of the docs anew.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny_files import write_talker
from tests.clients.install import MISSING, PYTHON, browser
from tests.clients.scenarios import TOOL
from tests.clients.test_clients import KEY, Zoo, start, stop

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
THOUGHT = "A slice with a step of -1 reads from the end."
TEXTS = {
    "short": "<think>\n\n</think>\n\nParis.",
    "other": "<think>\n\n</think>\n\nRome.",
    "closed": "Paris.",
    "link": "<think>\n\n</think>\n\nSee [the version](/version).",
    "markdown": f"<think>\n{THOUGHT}\n</think>\n\n"
    "Two ways:\n\n- **A slice** reads the text from its end.\n- `reversed` gives one character "
    'at a time.\n\n```python\ndef turned(text):\n    """Return the text from its end."""\n'
    "    return text[::-1]\n```\n\n<img src=x onerror=alert(1)>",
    "calls": "<think>\n\n</think>\n\nLet me look."
    + "".join(
        f'\n<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        for city in ("Paris", "Rome")
    ),
}
PICTURES = ("page", "page-settings", "page-tools", "page-dark", "page-phone")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[Zoo]:
    # An answer without end goes on until somebody stops it, however fast the machine.
    folder = tmp_path_factory.mktemp("zoo")
    found = start(write_talker(folder, qwen3_tokenizer_dir, num_positions=32768))
    yield found
    stop(found)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("PYVT_PAGE_PICTURES") or tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def seen(zoo: Zoo, pictures: Path) -> dict[str, Any]:
    """What the browser has seen, by the part of the page."""
    chromium = browser()
    if chromium is None or not PYTHON.is_file():
        pytest.skip(f"there is no Chromium, or {MISSING}")
    given = {
        **{"url": zoo.url, "key": KEY, "browser": chromium, "pictures": str(pictures)},
        **{"tool": TOOL, "ids": {name: zoo.ids(text) for name, text in TEXTS.items()}},
    }
    done = subprocess.run(
        [str(PYTHON), str(HERE / "drive_page.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_page_asks_for_a_key_and_keeps_it_in_the_tab(seen: dict[str, Any]) -> None:
    assert seen["key"] == dict.fromkeys(
        ("is_told", "answer", "is_kept_in_the_tab", "is_not_kept_for_ever"), True
    )


def test_page_renders_markdown_code_and_reasoning_and_no_html_of_a_model(
    seen: dict[str, Any],
) -> None:
    assert seen["markdown"] == {
        **{"has_list": 2, "has_bold": 1, "has_colours": True, "has_fold": 1, "is_folded": True},
        **{"has_no_element_of_the_model": True, "reasoning": THOUGHT},
    }


def test_page_makes_the_last_answer_again_and_goes_on_from_an_edit(seen: dict[str, Any]) -> None:
    assert seen["regenerate_and_edit"] == {
        "history": ["user", "assistant", "user"],
        "num_regenerate": 1,
        "same_question": True,
        "num_after_regenerate": 4,
        "text_to_edit": "One",
        "num_while_edited": 4,
        "is_told": True,
        "text_after_escape": "Half a",
        "sent_after_edit": ["Three"],
        "num_after_edit": 2,
        "text_after_edit": "Half a",
    }


def test_page_keeps_the_conversation_over_links_and_reloads(seen: dict[str, Any]) -> None:
    link = "See [the version](/version)."
    assert seen["links"] == {
        "rel": "noopener",
        "is_link_after_reload": "_blank",
        "is_stopped_after_reload": True,
        "sent_after_reload": ["Where?", link, "And then?", "Half an ", "Go on"],
    }


def test_page_follows_an_answer_unless_a_person_has_scrolled_up(seen: dict[str, Any]) -> None:
    names = ("follows", "stays_where_scrolled_to", "follows_again", "is_at_end")
    assert seen["follows"] == dict.fromkeys(names, True)


def test_page_leaves_a_fold_as_a_person_wants_it_while_the_answer_grows(
    seen: dict[str, Any],
) -> None:
    names = ("is_open_while_it_thinks", "stays_shut", "is_shut", "stays_open")
    assert seen["folds"] == dict.fromkeys((*names, "is_open_at_the_end", "has_focus"), True)


def test_page_tells_a_screen_reader_what_is_new_and_once(seen: dict[str, Any]) -> None:
    question, answer = seen["told"]
    assert question.startswith("YouTwo")
    assert answer.startswith("Assistant")
    assert "gives one character at a time." in answer


def test_page_sends_the_system_prompt_and_every_setting_that_was_given(
    seen: dict[str, Any],
) -> None:
    found = seen["settings"]
    assert found["without"] == ["messages", "stream", "stream_options"]
    assert found["with"] == {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 50, "seed": 7},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert found["system"] == {"role": "system", "content": "Be brief."}
    assert "top_p" in found["refusal"]


def test_page_shows_tool_calls_and_what_is_wrong_with_tools(seen: dict[str, Any]) -> None:
    paris, rome = seen["tools"]["calls"]
    assert "get_weather" in paris
    assert '"Paris"' in paris
    assert "get_weather" in rome
    assert '"Rome"' in rome
    assert "no JSON" in seen["tools"]["error"]


def test_page_gives_results_to_calls_and_keeps_both(seen: dict[str, Any]) -> None:
    question, calling, paris, rome, answer, last = seen["tools"]["conversation"]
    assert question["content"] == "What is the weather in Paris and in Rome?"
    assert [json.loads(call["function"]["arguments"]) for call in calling["tool_calls"]] == [
        {"city": "Paris"},
        {"city": "Rome"},
    ]
    ids = [call["id"] for call in calling["tool_calls"]]
    assert paris == {"role": "tool", "tool_call_id": ids[0], "content": "It rains."}
    assert rome == {"role": "tool", "tool_call_id": ids[1], "content": "It is dry."}
    assert (answer["content"], last["content"]) == ("Paris.", "And tomorrow?")
    assert seen["tools"]["before"]


def test_page_leaves_out_what_failed_and_asks_it_again(seen: dict[str, Any]) -> None:
    assert seen["failures"] == {
        "after_a_refusal": ["Two"],
        "is_told": True,
        "after_a_break": ["Two", "Paris.", "Four"],
        "retried": ["Two", "Paris.", "Four", "Paris.", "Five"],
    }


def test_page_stops_an_answer_by_button_and_key(seen: dict[str, Any]) -> None:
    assert seen["stop"] == {"button_stopped": True, "key_stopped": True}


def test_page_shows_the_engine_live(seen: dict[str, Any]) -> None:
    found = seen["gauges"]
    assert 1 <= found["running"] <= 3
    assert found["waiting"]
    assert found["rate"] > 0
    assert found["kv"]
    assert 0 <= found["prefix"] <= 100


def test_page_rounds_no_small_share_away_and_tells_nothing_of_a_dead_server(
    seen: dict[str, Any],
) -> None:
    assert seen["gauges_of_others"] == {"kv": ["1.2 %", "< 0.1 %"], "dead": ["–"]}


def test_page_tells_the_speed_of_what_came_in_parts_alone(seen: dict[str, Any]) -> None:
    assert re.fullmatch(r"10 tokens · first after [\d.]+ s", seen["facts"]["at_once"])
    found = re.fullmatch(
        r"20 tokens · ([\d.]+) tokens/s · first after [\d.]+ s", seen["facts"]["in_parts"]
    )
    assert found is not None
    assert 0 < float(found[1]) < 10 / 0.02


def test_page_is_used_by_the_keyboard_alone(seen: dict[str, Any]) -> None:
    assert seen["keyboard"] == {
        **{"lines": "two\nlines", "text_to_edit": "two\nlines"},
        **{"focus_is_back": True, "reached": "Edit"},
    }


def test_page_has_roles_and_names_for_a_screen_reader(seen: dict[str, Any]) -> None:
    fields = ["Message", "System prompt", "API key", "Temperature", "Seed", "Thinking"]
    assert seen["screen_reader"] == {
        **{"log": "polite", "fields": fields, "num_nameless": 0, "language": "en"}
    }


def test_page_is_dark_where_wanted_and_fits_a_phone(seen: dict[str, Any]) -> None:
    names = ("follows_the_system", "is_darkened", "fits_a_phone", "settings_fit_a_phone")
    more = "settings_leave_room_on_a_small_phone"
    assert seen["looks"] == dict.fromkeys((*names, more), True)


def test_page_has_no_errors_loads_nothing_from_elsewhere_and_makes_pictures(
    seen: dict[str, Any], pictures: Path
) -> None:
    assert seen["errors"] == []
    assert seen["elsewhere"] == []
    for name in PICTURES:
        assert 5000 < (pictures / f"{name}.png").stat().st_size < 200_000
