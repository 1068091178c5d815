"""EngineThread: one terminal event a request, whatever happens, and an end to wait for."""

import gc
import os
import random
import resource
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from pyvt.engine.engine_thread import EngineThread
from pyvt.engine.events import Event
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import EngineCoreRequest, SchedulerOutput
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.engine.engines import engine_of, is_idle

PATIENCE_S = 60


class Gate:
    """Stops the engine before a step until it is opened; counts the steps that came to it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.is_open = threading.Event()
        self.has_come = threading.Event()

    def __call__(self, _: SchedulerOutput) -> None:
        self.has_come.set()
        assert self.is_open.wait(PATIENCE_S), "the gate was never opened"
        if self.error is not None:
            raise self.error


class Run:
    """A thread over a fake worker, and the events of every request that was given to it."""

    def __init__(self, max_requests: int = 100, **settings: Any) -> None:
        self.engine = engine_of(**settings)
        self.thread = EngineThread(self.engine, max_requests=max_requests)
        self.sinks: dict[str, SimpleQueue[Event]] = {}
        self.seen: dict[str, list[Event]] = {}

    def request(self, request_id: str, prompt: str = "abc", **params: Any) -> EngineCoreRequest:
        timeout_s = params.pop("timeout_s", None)
        chosen = SamplingParams(**{"max_tokens": 5, "ignore_eos": True, "seed": 1} | params)
        return self.engine.process(request_id, prompt, chosen, timeout_s=timeout_s)

    def submit(self, request_id: str, *, is_waiting: bool = False, **params: Any) -> None:
        request = self.request(request_id, **params)
        sink: SimpleQueue[Event] = SimpleQueue()
        self.thread.submit([request], sink, is_stream=True, is_waiting=is_waiting)
        self.sinks[request_id], self.seen[request_id] = sink, []

    def events(self, request_id: str) -> list[Event]:
        """Return all events of a request up to its terminal one, which must come."""
        events = self.seen[request_id]
        while not events or not is_terminal(events[-1]):
            events.append(self.sinks[request_id].get(timeout=PATIENCE_S))
        return events

    def end(self) -> None:
        """Shut down; every request has exactly one terminal event, its last; nothing is left."""
        assert self.thread.shutdown(timeout_s=PATIENCE_S)
        for name, sink in self.sinks.items():
            while not sink.empty():
                self.seen[name].append(sink.get())
            is_last = [is_terminal(event) for event in self.seen[name]]
            assert is_last == [False] * (len(is_last) - 1) + [True], f"{name}: {self.seen[name]}"
        assert is_idle(self.engine)
        assert self.thread.num_unfinished_requests == 0


def is_terminal(event: Event) -> bool:
    return not isinstance(event, RequestOutput) or event.finished


def reason(event: Event) -> str | None:
    assert isinstance(event, RequestOutput)
    return event.outputs[0].finish_reason


def tokens(events: list[Event]) -> tuple[int, ...]:
    return sum((e.outputs[0].token_ids for e in events if isinstance(e, RequestOutput)), ())


def solo(prompt: str = "abc", **params: Any) -> tuple[int, ...]:
    run = Run()
    run.submit("a", prompt=prompt, **params)
    found = tokens(run.events("a"))
    run.end()
    return found


def stop_thread(run: Run) -> None:
    threading.Thread(target=run.thread.shutdown).start()


ENDS: dict[str, tuple[Callable[[Run], Any], str]] = {
    "runs-out": (lambda run: None, "length"),
    "is-cancelled": (lambda run: run.thread.cancel("a"), "abort"),
    "is-cancelled-twice": (lambda run: [run.thread.cancel("a") for _ in "12"], "abort"),
    "is-shut-down": (stop_thread, "abort"),
}


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_thread_gives_one_terminal_event_however_a_request_ends(how: str, is_waiting: bool) -> None:
    """While it runs, and while it waits behind another that fills the only row."""
    gate = Gate()
    run = Run(before_step=gate, max_num_seqs=1 if is_waiting else 8)
    if is_waiting:
        run.submit("first")
    run.submit("a")
    assert gate.has_come.wait(PATIENCE_S)
    act, expected = ENDS[how]

    act(run)
    while how == "is-shut-down" and run.thread.is_ready:
        pass
    gate.is_open.set()

    assert reason(run.events("a")[-1]) == expected
    for name in set(run.sinks) - {"a"}:
        run.events(name)
    run.end()


def test_thread_worker_failure_reaches_every_caller_and_flips_readiness() -> None:
    gate = Gate(OSError("disk on fire"))
    run = Run(before_step=gate, max_requests=2)
    run.submit("a")
    run.submit("b")
    assert gate.has_come.wait(PATIENCE_S)
    errors: SimpleQueue[BaseException] = SimpleQueue()

    def catch(function: Callable[[], Any]) -> None:
        try:
            function()
        except EngineDeadError as error:
            errors.put(error)

    waiting = [
        threading.Thread(target=catch, args=[lambda: run.submit("no-room", is_waiting=True)]),
        threading.Thread(target=catch, args=[lambda: run.thread.call(is_idle)]),
    ]
    for thread in waiting:
        thread.start()
    gate.is_open.set()

    found = [run.events(name)[-1] for name in "ab"]
    found += [errors.get(timeout=PATIENCE_S) for _ in waiting]  # type: ignore[misc]
    assert not run.thread.is_ready
    for error in found:
        assert isinstance(error, EngineDeadError)
        assert "disk on fire" in str(error)
        assert isinstance(error.__cause__, OSError)
    assert len({id(error) for error in found}) == 4
    with pytest.raises(EngineDeadError, match="disk on fire"):
        run.submit("late")
    run.end()


def test_thread_failing_request_takes_no_other_down() -> None:
    run = Run(failing=frozenset({"bad"}))
    run.submit("good")
    run.submit("bad")

    bad = run.events("bad")[-1]

    assert (reason(bad), bad.error) == ("error", "logits are not finite")  # type: ignore[union-attr]
    assert tokens(run.events("good")) == solo()
    assert run.thread.is_ready
    run.end()


def test_thread_text_that_cannot_be_made_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(forced={"bad": [7, 7, 7]})
    tokenizer = run.engine.input_processor.tokenizer
    plain = type(tokenizer).token_bytes

    def token_bytes(token_id: int) -> bytes:
        if token_id == 7:
            raise IndexError("no such row")
        return plain(tokenizer, token_id)

    monkeypatch.setattr(tokenizer, "token_bytes", token_bytes)
    run.submit("good")
    run.submit("bad", max_tokens=50)

    bad = run.events("bad")[-1]

    assert (reason(bad), bad.error) == ("error", "[engine] text: IndexError: no such row")  # type: ignore[union-attr]
    assert tokens(run.events("good")) == solo()
    run.end()


def test_thread_request_that_the_engine_refuses_late_gets_a_terminal_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    monkeypatch.setattr(run.engine.core.scheduler, "add_request", lambda _: 1 / 0)

    run.submit("a")

    event = run.events("a")[-1]
    assert isinstance(event, RequestError)
    assert isinstance(event.__cause__, ZeroDivisionError)
    assert run.thread.is_ready
    run.end()


def test_thread_queue_is_bounded_and_refuses_by_code() -> None:
    gate = Gate()
    run = Run(before_step=gate, max_requests=2)
    run.submit("a")
    run.submit("b")

    with pytest.raises(RequestError, match="at most 2 unfinished requests") as refused:
        run.submit("c")

    assert refused.value.code == "queue_full"
    gate.is_open.set()
    run.events("a")
    run.submit("c")
    assert tokens(run.events("c")) == solo()
    run.end()


def test_thread_submit_that_waits_gets_room() -> None:
    run = Run(max_requests=1)

    for number in range(20):
        run.submit(f"r{number}", is_waiting=True)

    assert {reason(run.events(name)[-1]) for name in run.sinks} == {"length"}
    run.end()


def test_thread_batch_with_one_refused_request_accepts_none() -> None:
    run = Run(num_blocks=4)
    good, too_long = run.request("good"), run.request("long", prompt="x" * 50)

    with pytest.raises(RequestError, match="KV blocks"):
        run.thread.submit([good, too_long], SimpleQueue(), is_stream=False)

    assert run.thread.num_unfinished_requests == 0
    run.end()


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_thread_id_in_use_is_refused(first: int, second: int) -> None:
    gate = Gate()
    run = Run(before_step=gate)
    run.submit("a", n=first)

    with pytest.raises(RequestError, match="'a' is in use"):
        run.submit("a", n=second)

    gate.is_open.set()
    run.end()


def test_thread_cancel_of_an_unknown_request_does_nothing() -> None:
    run = Run()
    run.submit("a")
    run.events("a")

    run.thread.cancel("a")
    run.thread.cancel("never")

    assert run.thread.call(is_idle)
    run.end()


def test_thread_request_that_is_cancelled_often_is_in_the_queue_once() -> None:
    gate = Gate()
    run = Run(before_step=gate)
    run.submit("a", max_tokens=50)
    assert gate.has_come.wait(PATIENCE_S)

    for _ in range(1000):
        run.thread.cancel("a")

    assert run.thread._commands.qsize() == 1
    gate.is_open.set()
    assert reason(run.events("a")[-1]) == "abort"
    run.submit("a")  # the next of the id is another request
    assert tokens(run.events("a")) == solo()
    run.thread.cancel("a")
    run.end()


def test_thread_cancellation_that_overtakes_the_addition_ends_the_request() -> None:
    run = Run()
    put, commands = run.thread._commands.put, run.thread._commands

    class Overtaken:
        get, get_nowait, qsize = commands.get, commands.get_nowait, commands.qsize

        def put(self, command: Any) -> None:
            if type(command).__name__ == "_Add":
                run.thread.cancel("a")
            put(command)

    run.thread._commands = Overtaken()  # type: ignore[assignment]
    run.submit("a", max_tokens=50)

    events = run.events("a")

    assert reason(events[-1]) == "abort"
    assert len(tokens(events)) < 50
    run.end()


def test_thread_abort_while_another_prefills_200_times() -> None:
    """Each time both get their end, and the engine goes on."""
    run = Run(max_model_len=200)
    want = solo("y" * 40)

    for number in range(200):
        run.submit(f"long{number}", prompt="y" * 40)
        run.submit(f"gone{number}", prompt="z" * 40, max_tokens=50)
        run.thread.cancel(f"gone{number}")
        assert tokens(run.events(f"long{number}")) == want
        assert reason(run.events(f"gone{number}")[-1]) == "abort"

    run.end()


def test_thread_deadline_ends_a_request_with_its_text_so_far() -> None:
    run = Run()
    clock: Any = run.engine.core.clock
    run.engine.core.runner.before_step = lambda _: clock.advance(1.0)  # type: ignore[attr-defined]
    run.submit("a", max_tokens=50, timeout_s=3.0)
    run.submit("b")

    events = run.events("a")

    assert reason(events[-1]) == "abort"
    assert "deadline" in str(events[-1].error)  # type: ignore[union-attr]
    assert 1 <= len(tokens(events)) <= 3
    assert tokens(run.events("b")) == solo()
    run.end()


def test_thread_shutdown_is_idempotent_from_many_threads() -> None:
    run = Run()
    run.submit("a", max_tokens=90)
    callers = [threading.Thread(target=run.thread.shutdown) for _ in range(8)]

    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE_S)

    assert reason(run.events("a")[-1]) in ("abort", "length")
    assert not run.thread.is_alive
    with pytest.raises(EngineDeadError, match="was shut down"):
        run.submit("late")
    with pytest.raises(EngineDeadError, match="was shut down"):
        run.thread.call(is_idle)
    run.end()


def test_thread_shutdown_that_drains_finishes_what_was_accepted() -> None:
    gate = Gate()
    run = Run(before_step=gate)
    for name in ("a", "b"):
        run.submit(name)
    drained = threading.Thread(target=run.thread.shutdown, kwargs={"is_drain": True})

    drained.start()
    while run.thread.is_ready:
        pass
    with pytest.raises(EngineDeadError):
        run.submit("late")
    gate.is_open.set()
    drained.join(PATIENCE_S)

    assert [reason(run.events(name)[-1]) for name in ("a", "b")] == ["length", "length"]
    run.end()


def test_thread_drain_that_takes_too_long_aborts() -> None:
    gate = Gate()
    run = Run(before_step=gate)
    run.submit("a")
    assert gate.has_come.wait(PATIENCE_S)

    assert not run.thread.shutdown(is_drain=True, timeout_s=0.01)
    gate.is_open.set()

    assert reason(run.events("a")[-1]) == "abort"
    run.end()


def test_thread_shutdown_by_the_thread_itself_does_not_wait() -> None:
    run = Run()

    assert run.thread.call(lambda _: run.thread.shutdown()) is False

    run.end()


def test_thread_call_runs_after_the_commands_before_it_and_raises_here() -> None:
    run = Run()
    run.submit("a", max_tokens=90)
    run.thread.cancel("a")

    assert run.thread.call(is_idle)
    with pytest.raises(ZeroDivisionError):
        run.thread.call(lambda _: 1 / 0)
    assert run.thread.is_ready
    run.end()


def test_thread_interrupted_worker_is_a_failure_that_reaches_everybody() -> None:
    gate = Gate(KeyboardInterrupt())
    gate.is_open.set()
    run = Run(before_step=gate)

    run.submit("a")

    assert isinstance(run.events("a")[-1], EngineDeadError)
    assert not run.thread.is_ready


@pytest.mark.parametrize("seed", range(3))
def test_thread_many_callers_each_get_exactly_one_end(seed: int) -> None:
    """Random lengths, priorities, cancellations and failures from six threads, in a tiny pool."""
    failing = frozenset(f"{caller}-{number}" for caller in range(6) for number in (3, 11))
    run = Run(num_blocks=20, failing=failing)

    def client(caller: int) -> None:
        rng = random.Random(seed * 100 + caller)
        for number in range(20):
            name = f"{caller}-{number}"
            lengths = {"prompt": "p" * rng.randint(1, 20), "max_tokens": rng.randint(1, 20)}
            run.submit(name, is_waiting=True, **lengths)
            if rng.random() < 0.3:
                run.thread.cancel(name)

    clients = [threading.Thread(target=client, args=[caller]) for caller in range(6)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(PATIENCE_S)

    reasons = {name: reason(run.events(name)[-1]) for name in run.sinks}
    assert len(reasons) == 120
    assert set(reasons.values()) <= {"length", "abort", "error"}
    assert {name for name, why in reasons.items() if why == "error"} <= failing
    run.thread.call(lambda engine: engine.core.scheduler.check_integrity())
    run.end()


def held() -> tuple[int, int, int, int]:
    """Return live objects, traced bytes, open files and resident KiB of the process."""
    gc.collect()
    proc = Path("/proc/self")
    num_files = len(list((proc / "fd").iterdir())) if proc.exists() else 0
    pages = int((proc / "statm").read_text().split()[1]) if proc.exists() else 0
    traced, _ = tracemalloc.get_traced_memory()
    return len(gc.get_objects()), traced, num_files, pages * resource.getpagesize() // 1024


@pytest.mark.parametrize("num_requests", [750, pytest.param(5000, marks=pytest.mark.slow)], ids=str)
def test_thread_thousands_of_requests_leave_nothing_behind(num_requests: int) -> None:
    """Neither an object, nor memory that Python gave out, nor a file, nor memory of the system."""
    run, size = Run(max_requests=1000), num_requests // 5
    steps = run.engine.core.runner.steps  # type: ignore[attr-defined]
    counts = []
    tracemalloc.start()
    try:
        for batch in range(5):
            for number in range(size):
                run.submit(f"{batch}.{number}", prompt="ab", max_tokens=2)
            for number in range(size):
                run.events(f"{batch}.{number}")
                del run.sinks[f"{batch}.{number}"], run.seen[f"{batch}.{number}"]
            # The worker forgets the requests that ended in one step with the next one.
            run.submit("last", prompt="ab", max_tokens=1)
            run.events("last")
            run.thread.call(lambda _: steps.clear())
            counts.append(held())
    finally:
        tracemalloc.stop()
    run.end()

    # Two fifths fill the caches.
    num_objects, num_bytes, num_files, num_kib = (
        max(column[2:]) - column[1] for column in zip(*counts, strict=True)
    )
    assert num_objects < 100, "an object a request stays"
    assert num_bytes < 30 * num_requests, "bytes of a request stay"
    assert num_files == 0
    assert num_kib < max(1024, num_requests), "a KiB a request stays"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_thread_says_in_a_forked_process_that_it_is_not_there() -> None:
    """Calls waited for ever for a thread that fork does not copy."""
    run = Run()
    request = run.request("a")
    child = os.fork()
    if child == 0:
        num_refused = 0
        calls = (
            lambda: run.thread.submit([request], SimpleQueue(), is_stream=False),
            lambda: run.thread.call(lambda _: None),
        )
        for call in calls:
            try:
                call()
            except EngineDeadError as error:
                num_refused += "forked process" in str(error)
        os._exit(num_refused if run.thread.shutdown() and not run.thread.is_ready else 9)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    run.submit("a")
    assert reason(run.events("a")[-1]) == "length"
    run.end()


def test_thread_is_named_and_does_not_hold_the_process() -> None:
    run = Run()

    name, is_daemon = run.thread.call(
        lambda _: (threading.current_thread().name, threading.current_thread().daemon)
    )

    assert (name, is_daemon) == ("pyvt-engine", True)
    run.end()


def test_call_that_exits_ends_the_thread_and_its_caller() -> None:
    """The caller waited for ever for a result that nobody gave."""
    thread = EngineThread(engine_of())

    def leave(_: object) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.call(leave)

    assert thread.shutdown(timeout_s=PATIENCE_S)
    assert not thread.is_ready
