"""HeadDrafter: a second draft is what the head gives when it runs over its own first one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.messages import CachedRequestData, SchedulerOutput, StateSlots
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.tensor.dtype import F64
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import all_hidden, load_case, write_case
from pyvt.worker.drafter import HeadDrafter
from pyvt.worker.kv_cache import allocate_kv_cache
from pyvt.worker.model_runner import ModelRunner
from tests.worker.steps import new_request

BLOCK_SIZE = 4
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderForCausalLM:
    case = MODEL_CASES_BY_NAME["qwen3_5_mtp"]
    return load_case(write_case(case, tmp_path_factory.mktemp("m")), dtype=F64).model


class _Head:
    """A model whose forward is its head, over hidden states that are given."""

    def __init__(self, model: DecoderForCausalLM, ids: Array, hidden: Array) -> None:
        self.model, self.ids, self.hidden = model, ids, hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, input_ids: Array, batch: Any) -> Array:
        return self.model.draft(self.ids[batch.positions + 1], self.hidden[batch.positions], batch)


def drafted_alone(model: DecoderForCausalLM, ids: Array, num_drafts: int) -> list[int]:
    """Draft behind ``ids``, whose last token was sampled, running the head anew each time."""
    num_tokens = len(ids) - 1
    (hidden,) = all_hidden(model, [(ids[:-1], np.arange(num_tokens))])
    drafts: list[int] = []
    for _ in range(num_drafts):
        head: Any = _Head(model, ids, hidden)
        places = np.arange(len(hidden))
        (out,) = all_hidden(head, [(ids[:-1], places)])
        drafts.append(int(model.compute_logits(out[-1:]).argmax()))
        hidden, ids = np.concatenate([hidden, out[-1:]]), np.append(ids, drafts[-1])
    return drafts


@pytest.mark.parametrize("chunks", [[11], [4, 7], [10, 1]], ids=str)
def test_drafts_are_those_of_the_head_run_anew(
    model: DecoderForCausalLM, chunks: list[int]
) -> None:
    cache = allocate_kv_cache(model.kv_cache_specs(), 32, BLOCK_SIZE, 2)
    config = engine_config(
        "tiny", max_model_len=64, max_num_seqs=4, speculation="mtp", num_speculative_tokens=3
    )
    runner = ModelRunner(model, cache, config)
    assert isinstance(runner.drafter, HeadDrafter)
    prompt = MODEL_CASES_BY_NAME["qwen3_5_mtp"].prompts()["short"][0][:11].tolist()
    new = replace(
        new_request("a", prompt, num_groups=2, max_tokens=9),
        block_ids=(tuple(range(5, 13)), ()),
    )
    done = 0

    for count in chunks:
        output = runner.execute_model(
            SchedulerOutput(
                new_requests=() if done else (new,),
                cached_requests=(CachedRequestData("a", (), done),) if done else (),
                num_scheduled_tokens={"a": count},
                total_num_scheduled_tokens=count,
                state_slots={"a": StateSlots(1 if done else -1, ((count, 1),))},
            )
        )
        done += count

    (token,) = output.sampled_token_ids["a"]
    want = drafted_alone(model, np.array([*prompt, token]), 3)
    # Place 12 lies in a block that the request holds.
    assert output.draft_token_ids["a"] == tuple(want)
