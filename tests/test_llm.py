"""LLM over a fake worker: batches, chats, streams, and engines that stay usable."""

import gc
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyvt.engine.events import Event
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import EngineDeadError, RequestError
from pyvt.llm import LLM, TextStream
from pyvt.messages import SchedulerOutput
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.tokenizer.base import RenderedPrompt
from tests.engine import engines
from tests.engine.engines import engine_of

FIVE = SamplingParams(max_tokens=5, ignore_eos=True, seed=1)


class JoinTemplate:
    """Renders ``role:content|`` for each message, then the keyword arguments."""

    def render(self, messages: Sequence[Any], **kwargs: Any) -> RenderedPrompt:
        text = "".join(f"{m['role']}:{m['content']}|" for m in messages)
        shown = {name: value for name, value in sorted(kwargs.items()) if value is not None}
        return RenderedPrompt(f"{text}{shown}", f"{text}{shown}")


def llm_of(**settings: Any) -> tuple[LLM, LLMEngine]:
    engine = engine_of(chat_template=JoinTemplate(), max_model_len=200, **settings)
    return LLM.from_engine(engine), engine


def slow_llm() -> tuple[LLM, LLMEngine]:
    """An engine whose answers of 100 tokens take half a second: they run while a test acts."""
    llm, engine = llm_of()
    engine.core.runner.before_step = lambda _: time.sleep(0.005)  # type: ignore[attr-defined]
    return llm, engine


def token_ids(output: RequestOutput) -> tuple[int, ...]:
    return output.outputs[0].token_ids


def is_idle(llm: LLM) -> bool:
    """Whether nothing is left after what was asked for so far."""
    return llm.thread.call(engines.is_idle)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_generate_results_stand_in_the_order_of_the_prompts() -> None:
    llm, _engine = llm_of()
    prompts = ["a long prompt that takes some room", "b", [99, 100], "d"]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, seed=1) for n in (9, 1, 5, 3)]

    outputs = llm.generate(prompts, params)

    assert [output.prompt for output in outputs] == [prompts[0], "b", None, "d"]
    assert [len(token_ids(output)) for output in outputs] == [9, 1, 5, 3]
    assert all(output.finished for output in outputs)
    assert is_idle(llm)


def test_generate_tokens_do_not_depend_on_the_batch() -> None:
    prompts = [f"prompt {n}" for n in range(6)]

    together = llm_of(num_blocks=20)[0].generate(prompts, FIVE)
    alone = [llm_of()[0].generate(prompt, FIVE)[0] for prompt in prompts]

    assert [token_ids(output) for output in together] == [token_ids(output) for output in alone]


@pytest.mark.parametrize(
    ("prompts", "num_outputs"),
    [("text", 1), ([1, 2, 3], 1), (["a", "b"], 2), ([[1, 2], [3]], 2), (["a", [3]], 2), ([], 0)],
)
def test_generate_takes_one_prompt_or_several(prompts: Any, num_outputs: int) -> None:
    assert len(llm_of()[0].generate(prompts, FIVE)) == num_outputs


@pytest.mark.parametrize(
    "prompts",
    [
        np.array([97, 98]),
        [np.int64(97), np.int64(98)],
        [97, np.int64(98)],
        np.array([[97, 98]]),
        [np.array([97, 98])],
        {"prompt_token_ids": np.array([97, 98])},
    ],
)
def test_generate_takes_token_ids_in_arrays(prompts: Any) -> None:
    (found,) = llm_of()[0].generate(prompts, FIVE)

    assert (found.prompt_token_ids, {type(i) for i in found.prompt_token_ids}) == ((97, 98), {int})
    assert token_ids(found) == token_ids(llm_of()[0].generate([97, 98], FIVE)[0])


def test_generate_takes_objects_and_the_names_that_programs_for_vllm_use() -> None:
    llm, _engine = llm_of()
    prompts = [{"prompt": "ab"}, {"prompt_token_ids": list(b"cd")}]

    found = llm.generate(prompts, FIVE, use_tqdm=False)

    plain = llm.generate(["ab", list(b"cd")], FIVE)
    assert [(o.prompt, o.prompt_token_ids) for o in found] == [("ab", (97, 98)), (None, (99, 100))]
    assert list(map(token_ids, found)) == list(map(token_ids, plain))
    assert llm.generate({"prompt": "ab"}, FIVE)[0].prompt == "ab"
    assert llm.get_tokenizer() is llm.tokenizer


@pytest.mark.parametrize(
    "prompt",
    [
        {},
        {"prompt": "a", "priority": 1},
        {"prompt": [97]},
        {"prompt_token_ids": "a"},
        {"prompt": "a", "prompt_token_ids": [97]},
    ],
)
def test_generate_object_that_is_no_prompt_is_refused(prompt: dict[str, Any]) -> None:
    llm, _engine = llm_of()

    with pytest.raises(RequestError, match=r"prompt: expected") as refused:
        llm.generate(prompt, FIVE)

    assert refused.value.param == "prompt"


@pytest.mark.parametrize("bad", ["x" * 300, "", [999]])
def test_generate_one_bad_prompt_refuses_the_batch_before_any_is_queued(bad: Any) -> None:
    llm, engine = llm_of()

    with pytest.raises(RequestError):
        llm.generate(["fine", "fine too", bad], FIVE)

    assert is_idle(llm)
    assert engine.core.stats.num_steps == 0
    after = llm.generate(["one", "two"], FIVE)
    assert [output.prompt for output in after] == ["one", "two"]


def test_generate_wrong_number_of_params_is_refused() -> None:
    with pytest.raises(RequestError, match="expected 3, one for each prompt, got 2"):
        llm_of()[0].generate(["a", "b", "c"], [FIVE, FIVE])


@pytest.mark.parametrize("params", [{"temperature": 1}, "x", 5, [None], ["x"]])
def test_generate_params_of_a_wrong_type_are_refused(params: Any) -> None:
    llm, _engine = llm_of()

    with pytest.raises(RequestError, match=r"sampling_params: expected .*SamplingParams"):
        llm.generate(["a"], params)

    assert is_idle(llm)


def test_generate_metrics_are_times_on_the_engines_clock() -> None:
    llm, engine = llm_of()
    clock: Any = engine.core.clock
    engine.core.runner.before_step = lambda _: clock.advance(0.5)  # type: ignore[attr-defined]

    metrics = llm.generate("abc", FIVE)[0].metrics

    assert (metrics.num_prompt_tokens, metrics.num_generated_tokens) == (3, 5)
    assert (metrics.queue_ms, metrics.ttft_ms, metrics.prefill_ms) == (0.0, 500.0, 500.0)
    assert (metrics.mean_tpot_ms, metrics.decode_tokens_per_s) == (500.0, 2.0)


def test_generate_metrics_of_one_token_have_no_tpot() -> None:
    metrics = llm_of()[0].generate("abc", SamplingParams(max_tokens=1))[0].metrics

    assert (metrics.mean_tpot_ms, metrics.decode_tokens_per_s) == (None, None)


def test_chat_renders_the_conversation_with_its_arguments() -> None:
    llm, _ = llm_of()

    output = llm.chat([user("hi")], FIVE, chat_template_kwargs={"enable_thinking": False})[0]

    assert output.prompt == "user:hi|{'add_generation_prompt': True, 'enable_thinking': False}"
    assert output.prompt_token_ids == tuple(output.prompt.encode())


def test_chat_takes_several_conversations() -> None:
    outputs = llm_of()[0].chat([[user("a")], [user("b")]], FIVE)

    assert [str(output.prompt)[:7] for output in outputs] == ["user:a|", "user:b|"]


@pytest.mark.parametrize("messages", [[], [[]], "hi", ["hi"], [[user("a")], [{}]], user("a"), None])
def test_chat_wrong_messages_are_refused(messages: Any) -> None:
    llm, _engine = llm_of()

    with pytest.raises(RequestError, match="messages"):
        llm.chat(messages, FIVE)

    assert is_idle(llm)


def test_generate_n_answers_stand_by_index_and_equal_solo_runs() -> None:
    outputs = llm_of()[0].generate(["abc", "xyz"], replace(FIVE, n=3))

    solos = [
        [token_ids(llm_of()[0].generate(prompt, replace(FIVE, seed=1 + i))[0]) for i in range(3)]
        for prompt in ("abc", "xyz")
    ]
    assert [[a.token_ids for a in output.outputs] for output in outputs] == solos
    assert [[a.index for a in output.outputs] for output in outputs] == [[0, 1, 2]] * 2


def test_generate_more_prompts_than_the_engine_takes_at_once() -> None:
    llm, _ = llm_of()
    llm.thread.max_requests = 3

    outputs = llm.generate([f"{number}" for number in range(20)], FIVE)

    assert [output.prompt for output in outputs] == [f"{number}" for number in range(20)]
    assert is_idle(llm)


def test_generate_timeout_ends_a_request_with_its_text_so_far() -> None:
    llm, engine = llm_of()
    clock: Any = engine.core.clock
    engine.core.runner.before_step = lambda _: clock.advance(1.0)  # type: ignore[attr-defined]

    output = llm.generate("abc", SamplingParams(max_tokens=90, ignore_eos=True), timeout_s=3)[0]

    assert output.outputs[0].finish_reason == "abort"
    assert len(token_ids(output)) == 3
    assert "deadline" in str(output.error)


def test_generate_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    llm_of()[0].generate(["a", "b"], FIVE, progress=True)

    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err


def test_generate_from_several_threads_equals_solo_runs() -> None:
    llm, _ = llm_of()

    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda n: llm.generate(f"prompt {n}", FIVE)[0], range(24)))

    want = [llm_of()[0].generate(f"prompt {n}", FIVE)[0] for n in range(24)]
    assert [token_ids(output) for output in outputs] == [token_ids(output) for output in want]


@pytest.mark.parametrize("prompt", ["héllo", [1, 2], [user("hi")]])
def test_encode_gives_the_ids_that_generate_runs(prompt: Any) -> None:
    llm, _ = llm_of()
    is_chat = isinstance(prompt[0], dict)

    ids = llm.encode(prompt)

    output = (llm.chat if is_chat else llm.generate)(prompt, FIVE)[0]
    assert ids == output.prompt_token_ids


def test_shutdown_ends_the_thread_and_what_runs() -> None:
    llm, engine = llm_of()
    stream = llm.stream("abc", SamplingParams(max_tokens=90, ignore_eos=True))

    assert llm.shutdown()
    assert llm.shutdown()

    assert [o.finished for o in stream][-1:] == [True]
    assert engines.is_idle(engine)
    with pytest.raises(EngineDeadError, match="was shut down"):
        llm.generate("abc", FIVE)


def test_dropped_llm_ends_its_thread() -> None:
    llm, _ = llm_of()
    thread = llm.thread

    del llm
    gc.collect()

    assert not thread.is_ready
    assert thread.shutdown(timeout_s=60)


def test_stream_sums_to_generate() -> None:
    whole = llm_of()[0].generate("abc", FIVE)[0].outputs[0]

    pieces = list(llm_of()[0].stream("abc", FIVE))

    assert "".join(piece.outputs[0].text for piece in pieces) == whole.text
    assert sum((token_ids(piece) for piece in pieces), ()) == whole.token_ids
    assert [piece.finished for piece in pieces][-1:] == [True]
    assert pieces[-1].outputs[0].finish_reason == "length"


def test_stream_of_messages_is_a_chat() -> None:
    assert str(next(llm_of()[0].stream([user("hi")], FIVE)).prompt).startswith("user:hi|")


def test_stream_bad_request_is_refused_by_the_call() -> None:
    llm, _engine = llm_of()

    with pytest.raises(RequestError):
        llm.stream("", FIVE)

    assert is_idle(llm)


def test_stream_closed_early_frees_its_blocks() -> None:
    llm, engine = slow_llm()
    stream = llm.stream("abc", SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)

    stream.close()
    stream.close()

    assert is_idle(llm)
    assert engine.core.stats.num_finished == {"abort": 1}
    assert list(stream) == []


@pytest.mark.parametrize("num_read", [0, 1])
def test_stream_dropped_frees_its_blocks(num_read: int) -> None:
    llm, engine = slow_llm()
    stream = llm.stream("abc", SamplingParams(max_tokens=100, ignore_eos=True))
    for _ in range(num_read):
        next(stream)

    del stream
    gc.collect()

    assert is_idle(llm)
    assert engine.core.stats.num_finished == {"abort": 1}


def test_stream_as_context_manager_closes() -> None:
    llm, engine = slow_llm()

    with llm.stream("abc", SamplingParams(max_tokens=100, ignore_eos=True)) as stream:
        next(stream)

    assert is_idle(llm)
    assert engine.core.stats.num_finished == {"abort": 1}


def test_stream_dropped_in_the_middle_of_a_step_is_aborted_before_the_next() -> None:
    llm, engine = llm_of()
    streams = [llm.stream("abc", SamplingParams(max_tokens=100, ignore_eos=True))]
    engine.core.runner.before_step = lambda _: streams.clear()  # type: ignore[attr-defined]

    outputs = llm.generate("xyz", FIVE)

    assert len(token_ids(outputs[0])) == 5
    assert is_idle(llm)


def test_streams_read_in_turns_run_in_one_batch() -> None:
    alone = [list(llm_of()[0].stream(prompt, FIVE)) for prompt in ("abc", "xyz")]
    llm, engine = llm_of()
    gate = threading.Event()
    engine.core.runner.before_step = lambda _: gate.wait()  # type: ignore[attr-defined]
    first, second = llm.stream("abc", FIVE), llm.stream("xyz", FIVE)
    gate.set()

    pairs = list(zip(first, second, strict=True))

    for got, want in zip(zip(*pairs, strict=True), alone, strict=True):
        assert [token_ids(piece) for piece in got] == [token_ids(piece) for piece in want]
    assert engine.core.stats.num_steps <= 6


def test_generate_beside_an_open_stream_loses_none_of_its_text() -> None:
    want = "".join(p.outputs[0].text for p in llm_of()[0].stream("abc", FIVE))
    llm, _ = llm_of()
    stream = llm.stream("abc", FIVE)
    pieces = [next(stream)]

    llm.generate(["x", "y"], FIVE)

    pieces.extend(stream)
    assert "".join(piece.outputs[0].text for piece in pieces) == want


@pytest.mark.parametrize("at_step", [1, 2, 4])
def test_generate_interrupted_aborts_its_requests_and_the_engine_goes_on(at_step: int) -> None:
    llm, engine = llm_of()
    calm = llm_of()[0].generate("after", FIVE)[0]
    press = CtrlC(at_step)
    engine.core.runner.before_step = press  # type: ignore[attr-defined]

    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], FIVE)
    press.is_caught.set()

    assert is_idle(llm)
    assert token_ids(llm.generate("after", FIVE)[0]) == token_ids(calm)


def test_stream_interrupted_is_closed_and_its_neighbour_goes_on() -> None:
    want = [token_ids(piece) for piece in llm_of()[0].stream("xyz", FIVE)]
    llm, engine = llm_of()
    press = CtrlC(3)
    press.is_due.clear()
    press.may_start.clear()
    engine.core.runner.before_step = press  # type: ignore[attr-defined]
    first, neighbour = llm.stream("abc", FIVE), llm.stream("xyz", FIVE)
    press.may_start.set()  # the second step has both

    got = [token_ids(next(neighbour))]
    press.at_read_of(first)
    with pytest.raises(KeyboardInterrupt):
        list(first)
    press.is_caught.set()

    got.extend(token_ids(piece) for piece in neighbour)
    assert got == want
    assert is_idle(llm)


def test_generate_after_a_worker_failure_says_why() -> None:
    llm, engine = llm_of()
    engine.core.runner.before_step = FailAt(2, OSError("disk on fire"))  # type: ignore[attr-defined]

    with pytest.raises(EngineDeadError, match="disk on fire"):
        llm.generate("a", FIVE)
    with pytest.raises(EngineDeadError, match="disk on fire"):
        llm.generate("b", FIVE)

    assert not llm.thread.is_ready
    assert engines.is_idle(engine)


class FailAt:
    """Raises at one step."""

    def __init__(self, at_step: int, error: BaseException) -> None:
        self.num_left = at_step
        self.error = error

    def __call__(self, _: SchedulerOutput) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            raise self.error


class CtrlC:
    """Presses Ctrl-C during one step, when it is due; the step goes on when it was caught."""

    def __init__(self, at_step: int) -> None:
        self.num_left = at_step
        self.is_due = threading.Event()
        self.is_due.set()
        self.is_caught = threading.Event()
        self.may_start = threading.Event()
        self.may_start.set()

    def at_read_of(self, stream: TextStream) -> None:
        """Press when the stream is read: before that nobody would close it."""
        get = stream.channel.get

        def get_when_due() -> Event:
            self.is_due.set()
            return get()

        stream.channel = SimpleNamespace(get=get_when_due)  # type: ignore[assignment]

    def __call__(self, _: SchedulerOutput) -> None:
        assert self.may_start.wait(60), "the first step was never let go"
        self.num_left -= 1
        if self.num_left == 0:
            assert self.is_due.wait(60), "Ctrl-C was never due"
            os.kill(os.getpid(), signal.SIGINT)
            assert self.is_caught.wait(60), "nobody caught Ctrl-C"
