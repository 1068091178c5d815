"""``pyvt generate``: one prompt in, one answer out."""

import json
import select
import sys
from collections.abc import Sequence
from typing import Any

import click

from pyvt.cli.args import given
from pyvt.cli.session import (
    SAMPLING_FIELDS,
    Prompt,
    Session,
    model_options,
    open_session,
    sampling_options,
)
from pyvt.cli.structure import structure_of, structure_options
from pyvt.cli.terminal import MAX_INPUT, say, write_text
from pyvt.errors import RequestError
from pyvt.sampling_params import SamplingParams

DEFAULTS = {"max_tokens": 256, "temperature": 0.0}
EXIT_INTERRUPTED = 130
SILENCE_S = 1.0


@click.command(context_settings={"max_content_width": 100})
@click.argument("words", metavar="[PROMPT]", nargs=-1)
@click.option("-p", "--prompt", help="the prompt, for one that starts with a dash")
@click.option("-s", "--system", help="system message before the prompt; not with --raw")
@click.option(
    "--chat/--raw",
    "is_chat",
    default=None,
    help="answer the prompt as a message through the model's chat template, or complete it as it "
    "is  [default: --chat where the model has a template]",
)
@model_options
@sampling_options(DEFAULTS)
@structure_options
@click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else")
def generate(
    words: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    is_chat: bool | None,
    is_json: bool,
    **options: Any,
) -> int:
    """Answer PROMPT, or complete it with --raw; the text streams to stdout, metrics to stderr.

    What is piped in is the prompt, or follows PROMPT after an empty line; one newline at its end is
    dropped. Greedy unless --temperature is given. Ctrl-C ends the answer with exit code 130.
    """
    text = full_prompt(words, prompt)
    params = SamplingParams(
        **{"temperature": DEFAULTS["temperature"]} | given(options, SAMPLING_FIELDS),
        structured_outputs=structure_of(options),
    )
    if is_chat is False and system is not None:
        raise RequestError("[generate] system: expected none with --raw", param="system")
    session = open_session(options)
    answer = session.stream(
        request(session, text, system, is_chat),
        params,
        int(DEFAULTS["max_tokens"]),
        _ignore if is_json else write_text,
    )
    facts = session.facts(answer)
    for warning in answer.warnings:
        say(f"warning: {warning}")
    if is_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        write_text("\n")
        say(metrics_line(facts))
    return EXIT_INTERRUPTED if answer.finish_reason == "abort" else 0


def full_prompt(words: Sequence[str], prompt: str | None) -> str:
    """Return the prompt of the command line and of stdin, joined. Raises RequestError for none."""
    if len(words) > 1:
        raise RequestError(
            f"[generate] prompt: expected one argument, got {len(words)}, {words[0]!r} first; "
            "put the prompt in quotes and name a model with -m"
        )
    if words and prompt is not None:
        raise RequestError("[generate] prompt: expected it once, got PROMPT and --prompt")
    parts = [part for part in (*words, prompt, _piped()) if part]
    if not parts:
        raise RequestError(
            "[generate] prompt: expected some text, got none; give it as an argument or pipe it in",
            param="prompt",
        )
    return "\n\n".join(parts)


def request(session: Session, text: str, system: str | None, is_chat: bool | None) -> Prompt:
    """Return messages for the chat template, or the text itself."""
    if is_chat is None:
        is_chat = session.has_chat_template or system is not None
    if not is_chat:
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def metrics_line(facts: dict[str, Any]) -> str:
    """Return the metrics of an answer as ``key=value`` in one line."""
    values = facts["metrics"] | {
        name: facts[name] for name in ("finish_reason", "backend", "dtype")
    }
    return " ".join(f"{key}={'-' if value is None else value}" for key, value in values.items())


def _piped() -> str:
    """Return what is piped in; nothing on a terminal. Raises RequestError for bytes not UTF-8."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    if _is_silent():
        say("waiting for the rest of the prompt on stdin; '< /dev/null' says that there is none")
    data = sys.stdin.buffer.read(MAX_INPUT + 1)
    if len(data) > MAX_INPUT:
        raise RequestError(f"[generate] stdin: expected at most {MAX_INPUT >> 20} MiB, got more")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"[generate] stdin: expected UTF-8, got {error}") from error


def _is_silent() -> bool:
    """Return whether stdin is a pipe on which nothing has come for a while."""
    try:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], SILENCE_S)
    except (OSError, ValueError):  # a stdin without a descriptor
        return False
    return not ready


def _ignore(text: str) -> None:
    """Take a piece of text and show nothing."""
