"""``pyvt chat``: a conversation in the terminal."""

import atexit
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Protocol

import click
from click.core import ParameterSource

from pyvt.cli.args import given
from pyvt.cli.chat_remote import open_remote
from pyvt.cli.session import (
    SAMPLING_FIELDS,
    Answer,
    Message,
    Session,
    engine_settings,
    model_options,
    open_session,
    sampling_options,
)
from pyvt.cli.terminal import MAX_INPUT, say, write_text
from pyvt.config.model import SamplingDefaults
from pyvt.errors import EngineDeadError, PyvtError, RequestError
from pyvt.hub import storage
from pyvt.sampling_params import SamplingParams

MAX_TOKENS = 1024
TEMPERATURE = 0.7
_PLAIN = replace(SamplingParams(), temperature=TEMPERATURE)
DEFAULTS = {"max_tokens": MAX_TOKENS} | {
    field.name: f"the model's own, else {getattr(_PLAIN, field.name)}"
    for field in fields(SamplingDefaults)
}
PROMPT = ">>> "
MORE = "... "
QUOTES = '"""'
HISTORY_LINES = 1000
HELP = """/help            show this
/clear           forget the conversation, keep the system message
/system [TEXT]   set the system message and forget the conversation; without TEXT: none
/exit            leave; so does Ctrl-D
Ctrl-C stops the answer.
A line that ends with \\ goes on; lines between \"\"\" and \"\"\" are one message."""


@click.command(context_settings={"max_content_width": 100})
@click.option("-s", "--system", help="system message")
@click.option("--url", help="talk with a server of OpenAI's API instead, such as pyvt serve")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="the server's key; or OPENAI_API_KEY")
@model_options
@sampling_options(DEFAULTS)
@click.pass_context
def chat(
    context: click.Context,
    /,
    system: str | None,
    url: str | None,
    api_key: str | None,
    **options: Any,
) -> int:
    """Talk with a model. Sampling is what the model's own config asks for, unless an option says.

    With --url the model is the server's, of the name --model where it is given; how it is run, and
    what an option does not say of sampling, are the server's too.

    Ctrl-C stops the answer, not the program; /help lists what a line may be. Lines that are piped
    in are taken one by one; where one has no answer, the exit code is 1.
    """
    settings = given(options, SAMPLING_FIELDS)
    partner: Partner
    if url is None:
        partner = Local(open_session(options), settings)
    else:
        for name in engine_settings(options):
            flag = f"--{name.replace('_', '-')}"
            raise RequestError(
                f"[chat] {flag}: expected none with --url, whose server has its own; leave it out"
            )
        is_named = context.get_parameter_source("model") is not ParameterSource.DEFAULT
        partner = open_remote(url, api_key or "", options["model"] if is_named else None, settings)
    conversation = Conversation(partner, system)
    if sys.stdin is None:
        raise RequestError("[chat] stdin: expected it to be open, got a closed one")
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        _keep_history()
        say(f"{partner.name}; /help for help, Ctrl-D to leave")
    for entry in entries(is_terminal):
        if not entry.strip():
            continue
        if entry.startswith("/"):
            if not conversation.command(entry):
                break
        else:
            conversation.answer(entry)
    return 1 if conversation.num_failed and not is_terminal else 0


class Partner(Protocol):
    """Who answers: a model in this process or a server."""

    @property
    def name(self) -> str:
        """What the user knows it by."""
        ...

    def stream(self, messages: list[Message], write: Callable[[str], None]) -> Answer:
        """Stream an answer into ``write``; Ctrl-C ends it with the finish reason ``abort``."""
        ...


class Local:
    """A model in this process."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        if not session.has_chat_template:
            raise RequestError(
                f"[chat] {session.name}: expected a model with a chat template, got none; "
                "complete text with pyvt generate --raw"
            )
        self.session = session
        self.name = session.name
        own = session.llm.engine.default_params
        if own == SamplingParams():
            own = replace(own, temperature=TEMPERATURE)
        self.params = replace(own, **settings)

    def stream(self, messages: list[Message], write: Callable[[str], None]) -> Answer:
        """Stream an answer into ``write``."""
        return self.session.stream(messages, self.params, MAX_TOKENS, write)


class Conversation:
    """The messages so far; ``partner`` answers, but for ``num_failed`` of them."""

    def __init__(self, partner: Partner, system: str | None) -> None:
        self.partner = partner
        self.system = system
        self.messages: list[Message] = []
        self.num_failed = 0

    def answer(self, text: str) -> None:
        """Stream the answer to a message. One that cannot be served is dropped again."""
        start = [] if self.system is None else [{"role": "system", "content": self.system}]
        message = {"role": "user", "content": text}
        messages = [*start, *self.messages, message]
        try:
            answer = self.partner.stream(messages, write_text)
        except EngineDeadError:
            raise
        except PyvtError as error:
            say(f"error: {error}")
            self.num_failed += 1
            return
        except KeyboardInterrupt:
            write_text("\n")
            say("stopped; the message is forgotten")
            return
        write_text("\n")
        if answer.finish_reason == "length":
            say("(cut at --max-tokens or the context)")
        elif answer.finish_reason == "abort":
            say("(stopped)")
        self.messages += [message, {"role": "assistant", "content": answer.text}]

    def command(self, line: str) -> bool:
        """Carry out a line that starts with a slash; returns False for the one that leaves."""
        word, _, rest = line.partition(" ")
        match word.strip():
            case "/exit" | "/quit" | "/bye":
                return False
            case "/help":
                say(HELP)
            case "/clear":
                self.messages.clear()
                say("(cleared)")
            case "/system":
                self.system = rest.strip() or None
                self.messages.clear()
                say("(system message set)" if self.system else "(no system message)")
            case unknown:
                say(f"error: no command {unknown!r}; /help lists them")
        return True


def entries(is_terminal: bool) -> Iterator[str]:
    """Yield the messages and commands that are typed or piped in, until their end.

    A message that goes on when a pipe ends is whole; on a terminal Ctrl-D drops it.
    """
    while True:
        line = ""
        try:
            line = _read(PROMPT, is_terminal)
            while line.endswith("\\"):
                line = f"{line[:-1]}\n"
                line += _read(MORE, is_terminal)
            if line.startswith(QUOTES):
                line = line.removeprefix(QUOTES)
                while QUOTES not in line:
                    line += "\n"
                    line += _read(MORE, is_terminal)
                line = line.partition(QUOTES)[0].strip("\n")
        except EOFError:
            if line and not is_terminal:
                yield line.strip("\n")
            if is_terminal:
                write_text("\n")
            return
        except KeyboardInterrupt:
            write_text("\n")
            if not is_terminal:
                raise
            continue
        yield line


def _read(prompt: str, is_terminal: bool) -> str:
    """Return one line without its end. Raises EOFError where there is none left."""
    if is_terminal:
        return input(prompt)
    line = sys.stdin.readline(MAX_INPUT + 1)
    if not line:
        raise EOFError
    if len(line) > MAX_INPUT:
        raise RequestError(
            f"[chat] stdin: expected lines of at most {MAX_INPUT >> 20} Mi characters"
        )
    return line.removesuffix("\n")


def _keep_history() -> None:
    """Give ``input`` line editing and a history that outlives the program."""
    # Python can be built without readline; input() then has no history.
    try:
        import readline
    except ImportError:
        return
    path = storage.models_dir().with_name("chat_history")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.read_history_file(path)
    except OSError as error:
        say(f"no history: {error}")
        return
    readline.set_history_length(HISTORY_LINES)
    atexit.register(readline.write_history_file, path)
