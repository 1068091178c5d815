"""AsyncLLM: streams beside each other, cancelled reads that lose nothing, requests that end."""

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyvt.engine.async_llm import AsyncLLM, RequestStream
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import SchedulerOutput
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.engine import engines
from tests.engine.engines import engine_of

PATIENCE_S = 60
FIVE = SamplingParams(max_tokens=5, ignore_eos=True, seed=1)
LONG = SamplingParams(max_tokens=90, ignore_eos=True, seed=1)


def run(main: Callable[[AsyncLLM], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Run a coroutine over a fake worker and shut down; nothing may be left."""
    max_requests = settings.pop("max_requests", 1000)
    llm = AsyncLLM.from_engine(engine_of(**settings), max_requests=max_requests)

    async def whole() -> Any:
        result = await asyncio.wait_for(main(llm), PATIENCE_S)
        assert await llm.shutdown(timeout_s=PATIENCE_S)
        assert engines.is_idle(llm.engine)
        return result

    return asyncio.run(whole())


class Hold:
    """Stops the engine before every step but the first, until it is let go."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.may_go = threading.Event()

    def __call__(self, _: SchedulerOutput) -> None:
        self.num_steps += 1
        assert self.num_steps == 1 or self.may_go.wait(PATIENCE_S), "the engine was never let go"


async def read(stream: RequestStream) -> list[RequestOutput]:
    return [output async for output in stream]


async def until_idle(llm: AsyncLLM) -> None:
    """Wait until what was asked for so far is done and no request is left."""
    while not await llm.call(engines.is_idle):
        await asyncio.sleep(0)


def tokens(outputs: list[RequestOutput]) -> tuple[int, ...]:
    return sum((output.outputs[0].token_ids for output in outputs), ())


def reason(output: RequestOutput) -> str | None:
    return output.outputs[0].finish_reason


def solo(prompt: str) -> tuple[int, ...]:
    return tokens(run(lambda llm: read(llm.generate(prompt, FIVE))))


def test_async_streams_beside_each_other_equal_their_solo_runs() -> None:
    prompts = [f"prompt {number}" for number in range(20)]

    async def main(llm: AsyncLLM) -> list[list[RequestOutput]]:
        return await asyncio.gather(*[read(llm.generate(p, FIVE)) for p in prompts])

    found = run(main, num_blocks=40)

    assert [tokens(outputs) for outputs in found] == [solo(prompt) for prompt in prompts]
    for outputs in found:
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]


def test_async_whole_answer_is_one_output() -> None:
    outputs = run(lambda llm: read(llm.generate("abc", FIVE, is_stream=False)))

    assert len(outputs) == 1
    assert tokens(outputs) == solo("abc")


def test_async_cancelled_read_loses_nothing() -> None:
    gate = threading.Event()

    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        stream = await llm.generate("abc", FIVE).start()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
        gate.set()
        return await read(stream)

    assert tokens(run(main, before_step=lambda _: gate.wait(PATIENCE_S))) == solo("abc")


def test_async_cancelled_task_that_drops_its_stream_frees_the_request() -> None:
    hold = Hold()

    async def main(llm: AsyncLLM) -> None:
        started = asyncio.Event()

        async def reader() -> None:
            async for _ in llm.generate("abc", LONG):
                started.set()

        task = asyncio.create_task(reader())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        await asyncio.sleep(0)  # the loop's call that goes on here holds the task's exception
        gc.collect()
        hold.may_go.set()
        await until_idle(llm)
        assert llm.engine.core.stats.num_finished == {"abort": 1}

    run(main, before_step=hold)


def test_async_cancelled_start_leaves_no_request_behind() -> None:
    entered, may_go = threading.Event(), threading.Event()

    async def main(llm: AsyncLLM) -> None:
        plain = llm.engine.process

        def slow(*args: Any, **kwargs: Any) -> Any:
            entered.set()
            assert may_go.wait(PATIENCE_S)
            return plain(*args, **kwargs)

        llm.engine.process = slow  # type: ignore[method-assign]
        task = asyncio.create_task(llm.generate("abc", FIVE).start())
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go.set()
        llm.engine.process = plain  # type: ignore[method-assign]
        await read(llm.generate("abc", FIVE))
        assert llm.engine.core.stats.num_finished == {"length": 1}

    run(main)


def test_async_stream_that_is_closed_while_it_starts_leaves_no_request_behind() -> None:
    async def main(llm: AsyncLLM) -> list[list[RequestOutput]]:
        streams = [llm.generate("prompt", LONG) for _ in range(20)]
        reads = [asyncio.ensure_future(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        for stream in streams:
            stream.close()
        found = await asyncio.gather(*reads)
        assert llm.num_unfinished_requests == 0
        return found

    assert run(main) == [[]] * 20


def test_async_stream_that_two_tasks_start_is_one_request() -> None:
    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        stream = llm.generate("prompt", FIVE)
        assert await asyncio.gather(stream.start(), stream.start()) == [stream, stream]
        return await read(stream)

    assert tokens(run(main)) == solo("prompt")


@pytest.mark.parametrize("how", ["close", "leave-block", "drop"])
def test_async_stream_that_is_left_early_frees_the_request(how: str) -> None:
    hold = Hold()

    async def main(llm: AsyncLLM) -> None:
        stream = llm.generate("abc", LONG)
        if how == "leave-block":
            async with stream:
                await anext(stream)
        else:
            await anext(stream)
        if how == "close":
            stream.close()
            stream.close()
            assert await read(stream) == []
        del stream
        gc.collect()
        hold.may_go.set()
        await until_idle(llm)
        assert llm.engine.core.stats.num_finished == {"abort": 1}

    run(main, before_step=hold)


def test_async_abort_by_id_ends_the_stream_with_its_text_so_far() -> None:
    hold = Hold()

    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        stream = llm.generate("abc", LONG, request_id="mine")
        first = await anext(stream)
        llm.abort("mine")
        llm.abort("unknown")
        hold.may_go.set()
        return [first, *await read(stream)]

    outputs = run(main, before_step=hold)

    assert reason(outputs[-1]) == "abort"
    assert [output.finished for output in outputs].count(True) == 1


def test_async_timeout_ends_the_stream() -> None:
    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        clock: Any = llm.engine.core.clock
        llm.engine.core.runner.before_step = lambda _: clock.advance(1)  # type: ignore[attr-defined]
        return await read(llm.generate("abc", LONG, timeout_s=3))

    outputs = run(main)

    assert reason(outputs[-1]) == "abort"
    assert "deadline" in str(outputs[-1].error)


@pytest.mark.parametrize("prompt", ["", "x" * 300, [999], 5])
def test_async_bad_request_is_refused_and_nothing_is_queued(prompt: Any) -> None:
    async def main(llm: AsyncLLM) -> None:
        with pytest.raises(RequestError):
            await llm.generate(prompt, FIVE).start()
        with pytest.raises(RequestError):
            await anext(llm.generate(prompt, FIVE))
        assert llm.num_unfinished_requests == 0

    run(main)


def test_async_queue_that_is_full_refuses_by_code() -> None:
    gate = threading.Event()

    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        stream = await llm.generate("abc", FIVE).start()
        with pytest.raises(RequestError) as refused:
            await llm.generate("x", FIVE).start()
        assert refused.value.code == "queue_full"
        gate.set()
        return await read(stream)

    outputs = run(main, max_requests=1, before_step=lambda _: gate.wait(PATIENCE_S))

    assert tokens(outputs) == solo("abc")


def test_async_worker_failure_reaches_every_reader_and_flips_readiness() -> None:
    async def main(llm: AsyncLLM) -> None:
        llm.engine.core.runner.before_step = lambda _: 1 / 0  # type: ignore[attr-defined]
        assert llm.is_ready
        readers = [read(llm.generate("abc", FIVE)) for _ in range(5)]
        found = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(error) for error in found] == [EngineDeadError] * 5
        assert not llm.is_ready
        with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
            await llm.generate("abc", FIVE).start()

    run(main)


@pytest.mark.parametrize(("is_drain", "expected"), [(True, "length"), (False, "abort")])
def test_async_shutdown_ends_every_stream(is_drain: bool, expected: str) -> None:
    gate = threading.Event()

    async def main(llm: AsyncLLM) -> None:
        readers = [asyncio.create_task(read(llm.generate(f"{n}", FIVE))) for n in range(5)]
        while llm.num_unfinished_requests < 5:
            await asyncio.sleep(0)
        ends = [asyncio.create_task(llm.shutdown(is_drain=is_drain)) for _ in range(2)]
        while llm.is_ready:
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*ends) == [True, True]
        assert {reason(outputs[-1]) for outputs in await asyncio.gather(*readers)} == {expected}
        with pytest.raises(EngineDeadError, match="was shut down"):
            await llm.generate("late", FIVE).start()

    run(main, before_step=lambda _: gate.wait(PATIENCE_S))


def test_async_loop_that_closes_before_the_end_costs_only_its_own_requests() -> None:
    gate = threading.Event()
    llm = AsyncLLM.from_engine(engine_of(before_step=lambda _: gate.wait(PATIENCE_S)))
    left: list[RequestStream] = []

    async def leave() -> None:
        left.append(await llm.generate("abc", LONG).start())

    async def go_on() -> tuple[int, ...]:
        return tokens(await read(llm.generate("abc", FIVE)))

    asyncio.run(leave())
    gate.set()
    found = asyncio.run(go_on())
    asyncio.run(until_idle(llm))

    assert found == solo("abc")
    assert llm.engine.core.stats.num_finished == {"abort": 1, "length": 1}
    llm.thread.shutdown()


def test_async_64_parallel_tokenisations_equal_sequential_ones() -> None:
    prompts = ["é漢" * number for number in range(1, 65)]

    async def main(llm: AsyncLLM) -> list[tuple[int, ...]]:
        tokenize = llm.engine.input_processor.tokenize
        return await asyncio.gather(
            *[llm.run_input(lambda p=prompt: tokenize(p)) for prompt in prompts]
        )

    assert run(main) == [tuple(prompt.encode()) for prompt in prompts]


def test_async_slow_reader_keeps_its_neighbours_going_and_loses_nothing() -> None:
    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        slow = llm.generate("abc", LONG)
        first = await anext(slow)
        others = [tokens(await read(llm.generate("xyz", FIVE))) for _ in range(20)]
        assert set(others) == {others[0]}
        return [first, *await read(slow)]

    outputs = run(main)

    assert len(tokens(outputs)) == 90


def test_late_close_of_a_finished_stream_spares_the_next_request_of_its_id() -> None:
    async def main(llm: AsyncLLM) -> list[RequestOutput]:
        first = await llm.generate("abc", FIVE, request_id="x").start()
        while llm.num_unfinished_requests:
            await asyncio.sleep(0)
        second = await llm.generate("abc", FIVE, request_id="x").start()
        first.close()
        may_go.set()
        return await read(second)

    def before_step(_: SchedulerOutput) -> None:
        assert next(steps) < 6 or may_go.wait(PATIENCE_S), "the engine was never let go"

    steps, may_go = itertools.count(), threading.Event()  # the first request has five steps

    outputs = run(main, before_step=before_step)

    assert reason(outputs[-1]) == "length"
    assert tokens(outputs) == solo("abc")
