"""``pyvt batch``: a file of requests in, a file of answers out.

The output is the record of what is done: a line is written once, whole, when its answer is
complete, and a second run goes on with the lines that have none. So Ctrl-C, or a crash, costs the
answers that were under way and nothing else.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import click

from pyvt.cli.batch_lines import (
    Job,
    LineError,
    answer_line,
    error_line,
    line_id,
    read_custom_id,
    read_job,
)
from pyvt.cli.session import Session, model_options, open_session
from pyvt.cli.terminal import counting, say
from pyvt.engine.events import Event, take_event
from pyvt.errors import ConfigError
from pyvt.outputs import RequestOutput

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
# Requests under way for each row of the engine: enough that no row waits for the next line.
LINES_PER_ROW = 2


@click.command(context_settings={"max_content_width": 100})
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
@model_options
def batch(source: Path, target: Path, **options: Any) -> int:
    """Answer the requests of SOURCE, a JSON object a line, into TARGET.

    The form is that of OpenAI's batch files, for /v1/chat/completions, /v1/completions and
    /v1/embeddings. TARGET is appended to: a second run goes on where the first one stopped. Answers
    come as they are ready, with the custom_id of their request. A bad line gives an error line. The
    counts at the end add up to the lines of SOURCE. The exit code is 1 where a line of TARGET
    failed, in this run or an earlier one, 130 after Ctrl-C.
    """
    done, num_failed_before = read_done(source, target)
    session = open_session(options)
    with source.open("rb") as lines, target.open("ab") as answers:
        run = BatchRun(session, answers, done)
        with counting("lines", _num_lines(source) - len(done)) as advance, _stop_at_interrupt(run):
            run.all_lines(lines, advance)
    session.llm.shutdown()
    before = f"{len(done)}" + (f" failed_before={num_failed_before}" * bool(num_failed_before))
    say(
        f"done={run.num_done} failed={run.num_failed} before={before} "
        f"finish={'interrupted' if run.is_stopped else 'complete'}"
    )
    if run.is_stopped:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if run.num_failed + num_failed_before else 0


@dataclass(slots=True)
class BatchRun:
    """The lines under way, and where their answers go."""

    session: Session
    answers: IO[bytes]
    done: frozenset[str]
    is_stopped: bool = False
    num_done: int = 0
    num_failed: int = 0
    _events: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _outputs: dict[str, RequestOutput] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def all_lines(self, lines: IO[bytes], advance: Callable[[int], None]) -> None:
        """Run the lines that have no answer yet, once stopped only those that are complete."""
        most = LINES_PER_ROW * self.session.llm.engine.config.scheduler.max_num_seqs
        for number, text in enumerate(lines, start=1):
            if self.is_stopped:
                break
            if not text.strip():
                continue
            is_done = line_id(number) in self.done
            self._start(text, number, is_done=is_done)
            advance(self.num_done + self.num_failed)
            while len(self._jobs) >= most and not self.is_stopped:
                self._take()
                advance(self.num_done + self.num_failed)
        if self.is_stopped:
            self.stop()
        while self._jobs:
            self._take()
            advance(self.num_done + self.num_failed)

    def stop(self) -> None:
        """Start no more and abort what is under way. A signal handler may call it."""
        self.is_stopped = True
        for request_id in list(self._jobs):
            self.session.llm.thread.cancel(request_id)

    def _start(self, text: bytes, number: int, *, is_done: bool) -> None:
        custom_id = read_custom_id(text)
        is_again = custom_id in self._seen
        if custom_id is not None:
            self._seen.add(custom_id)
        if is_done:
            return
        try:
            if is_again:
                raise LineError(
                    custom_id, ConfigError(f"[batch] custom_id: {custom_id!r} came before")
                )
            job = read_job(text, number, self.session.llm.engine, self.session.name)
        except LineError as error:
            self._write(error_line(number, error.custom_id, error.error), is_failed=True)
            return
        self._jobs.update({request.request_id: job for request in job.requests})
        self.session.llm.thread.submit(job.requests, self._events, is_stream=False, is_waiting=True)

    def _take(self) -> None:
        """Wait for the next output; write its line where it was the last one of it."""
        event = take_event(self._events)
        if not isinstance(event, RequestOutput):
            raise event
        job = self._jobs.pop(event.request_id)
        if any(answer.finish_reason == "abort" for answer in event.outputs):
            return
        self._outputs[event.request_id] = event
        ids = [request.request_id for request in job.requests]
        if all(request_id in self._outputs for request_id in ids):
            outputs = [self._outputs.pop(request_id) for request_id in ids]
            line, is_failed = answer_line(job, outputs)
            self._write(line, is_failed=is_failed)

    def _write(self, line: bytes, *, is_failed: bool) -> None:
        self.answers.write(line)
        self.answers.flush()
        self.num_done += not is_failed
        self.num_failed += is_failed


def read_done(source: Path, target: Path) -> tuple[frozenset[str], int]:
    """Return the ids of the answers that a target has and how many of them are errors.

    Cuts a last line that is not whole.

    Raises ConfigError where one of them is no file on disk, as both are read more than once, and
    where the target holds something else, or the answers to other requests.
    """
    for name, path in (("source", source), ("target", target)):
        if path == Path("-") or (path.exists() and not path.is_file()):
            raise ConfigError(
                f"[batch] {name}: expected a file on disk, as it is read more than once, got "
                f"{str(path)!r}; give the path of a file"
            )
    if not target.exists():
        if not target.parent.is_dir():
            raise ConfigError(
                f"[batch] target: expected a file in a folder that exists, got {str(target)!r}"
            )
        return frozenset(), 0
    if source.samefile(target):
        raise ConfigError(f"[batch] target: expected another file than the source, got {target}")
    found: dict[str, str | None] = {}
    size = num_failed = 0
    with target.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.endswith(b"\n"):
                break
            size += len(text)
            name, custom_id, is_failed = _answer(text, number, target)
            found[name] = custom_id
            num_failed += is_failed
    num_matched = 0
    with source.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            name = line_id(number)
            if name not in found:
                continue
            if found[name] != read_custom_id(text):
                raise _foreign(target, f"the answer to line {number} has another custom_id")
            num_matched += 1
    if num_matched != len(found):
        raise _foreign(target, "it answers lines that the source does not have")
    with target.open("r+b") as answers:
        answers.truncate(size)
    return frozenset(found), num_failed


def _answer(text: bytes, number: int, target: Path) -> tuple[str, str | None, bool]:
    """Return id and custom_id of a line of the target, and whether it is an error."""
    try:
        line = json.loads(text)
        return line["id"], line["custom_id"], line.get("error") is not None
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(target, f"line {number} is no answer") from error


def _foreign(target: Path, why: str) -> ConfigError:
    return ConfigError(
        f"[batch] target: expected {str(target)!r} to be new or an earlier output for this source, "
        f"but {why}; name another file"
    )


@contextmanager
def _stop_at_interrupt(run: BatchRun) -> Iterator[None]:
    """Make the first Ctrl-C stop after the line that is being written; a second one raises."""

    def on_signal(*_: object) -> None:
        if run.is_stopped:
            raise KeyboardInterrupt
        run.stop()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _num_lines(source: Path) -> int:
    with source.open("rb") as lines:
        return sum(1 for text in lines if text.strip())
