"""GET /metrics: every name of the table, values, and counters that never fall."""

import asyncio
import re
from dataclasses import replace

from pyvt.config import SpeculativeConfig
from tests.server.conftest import Serve
from tests.server.test_sleep import CHAT, PATH, Loads, asleep, run

# vLLM's names with its kinds, then those of others for what vLLM does not tell.
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens"),
    *("prompt_tokens_cached", "generation_tokens", "spec_decode_num_drafts"),
    *("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
    *("spec_decode_num_accepted_tokens_per_pos", "request_success"),
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
    *("request_params_max_tokens", "request_params_n", "iteration_tokens_total"),
)
TABLE = {
    **dict.fromkeys((*GAUGES, "cache_config_info"), "gauge"),
    **dict.fromkeys((f"{name}_total" for name in COUNTERS), "counter"),
    **dict.fromkeys(HISTOGRAMS, "histogram"),
    **{"mamba_usage": "gauge", "mamba_available_tokens": "gauge", "n_tokens_max": "gauge"},
    "grammar_compilation_time_seconds": "histogram",
    "num_grammar_timeout_total": "counter",
    "num_aborted_requests_total": "counter",
}


def test_metrics_have_every_name_of_the_table_and_the_models_name(serve: Serve) -> None:
    server = serve(names=("some/model",))
    server.chat()
    text = server.get("/metrics").text

    kinds = dict(re.findall(r"^# TYPE pyvt:(\w+) (\w+)$", text, re.MULTILINE))
    values = [line for line in text.splitlines() if line[0] != "#"]

    assert {name: kinds.get(name) for name in TABLE} == TABLE
    assert [line for line in values if 'model_name="some/model"' not in line] == []
    buckets = [line for line in values if "e2e_request_latency_seconds_bucket" in line]
    assert 'le="600.0"' in buckets[-2]


def test_metrics_count_what_was_done(serve: Serve) -> None:
    server = serve()
    server.chat()
    server.complete(["a", "b"])

    found = server.metrics()

    assert found['request_success_total{finished_reason="stop"}'] == 3
    assert found["generation_tokens_total"] == 3 * 7
    assert found["prompt_tokens_total"] == len("[user]Hi[assistant]") + 2
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0
    assert found["kv_cache_usage_perc"] == 0
    assert found["e2e_request_latency_seconds_count"] == 3
    assert found["n_tokens_max"] == len("[user]Hi[assistant]") + 7
    assert found["iteration_tokens_total_sum"] == len("[user]Hi[assistant]") + 2 + 3 * 6
    assert found["iteration_tokens_total_count"] == found["num_steps_total"]


def test_metrics_count_grammars_that_compile_and_that_take_too_long(serve: Serve) -> None:
    server = serve()
    for _ in range(2):  # the second one is there already
        server.complete(structured_outputs={"choice": ["Paris."]})
    compiler = server.engine.input_processor.compiler
    assert compiler is not None
    compiler._timeout_s = 0.0

    refused = server.complete(structured_outputs={"regex": "a{3}"})

    assert refused.status == 400
    found = server.metrics()
    assert found["num_grammar_timeout_total"] == 1
    assert found["grammar_compilation_time_seconds_count"] >= 1
    assert found["grammar_compilation_time_seconds_sum"] > 0


def test_accepted_drafts_are_told_by_their_place(serve: Serve) -> None:
    server = serve()
    drafting = SpeculativeConfig(speculation="ngram", num_speculative_tokens=3)
    server.engine.config = replace(server.engine.config, speculative=drafting)
    server.engine.core.stats.spec_decode_num_accepted_tokens_per_pos.update([0, 0, 1])
    server.state.attach(server.llm)

    name = "spec_decode_num_accepted_tokens_per_pos_total"
    found = [server.metrics()[f'{name}{{position="{place}"}}'] for place in range(3)]

    assert found == [2, 1, 0]


def test_counters_do_not_fall_with_the_prefix_cache(serve: Serve) -> None:
    server = serve()
    for _ in range(2):
        server.complete("one two three four five")
    before = server.metrics()

    server.post("/reset_prefix_cache", None)

    assert before["prefix_cache_hits_total"] > 0
    after = server.metrics()
    assert {name: after[name] for name in before} == before


def test_counters_do_not_fall_when_the_model_is_unloaded_and_loaded_again(serve: Serve) -> None:
    server = serve(["First."])
    sums = ("generation_tokens_total", "num_steps_total", "iteration_tokens_total_count")
    seen = []

    async def work(loads: Loads) -> None:
        for _ in range(2):
            await server.ask("POST", PATH, CHAT)
            seen.append(await asyncio.to_thread(server.metrics))
            await asleep(server)
            seen.append(await asyncio.to_thread(server.metrics))

    run(server, work)

    first, unloaded, second, _ = seen
    assert [unloaded[name] for name in sums] == [first[name] for name in sums]
    assert unloaded["num_requests_running"] == 0
    assert second["generation_tokens_total"] == len("First.") + 1 + len("Again.") + 1
    assert all(second[name] > first[name] for name in sums)
