"""Prometheus metrics: vLLM's names behind ``pyvt:``, read from the engine when they are asked for.

Gauges and engine counters are read at the scrape; histograms are fed when a request ends. Labels
are the model's name and what has few values, such as the reason of an end. A counter never falls:
what an engine has counted is kept when another one takes its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pyvt.config import CacheConfig, EngineConfig
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.stats import STEP_TOKENS
from pyvt.outputs import RequestMetrics
from pyvt.tally import SECONDS, Tally

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_MODEL = "model_name"

_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "time_to_first_token_seconds": ("from arrival to the first token", SECONDS),
    "inter_token_latency_seconds": ("between two outputs of a stream", SECONDS),
    "request_time_per_output_token_seconds": ("mean of each token after the first", SECONDS),
    "e2e_request_latency_seconds": ("from arrival to the last token", SECONDS),
    "request_queue_time_seconds": ("from arrival to the first step", SECONDS),
    "request_prefill_time_seconds": ("from the first step to the first token", SECONDS),
    "request_decode_time_seconds": ("from the first token to the last", SECONDS),
    "request_prompt_tokens": ("tokens of a prompt", _TOKENS),
    "request_generation_tokens": ("tokens of the answers to a request", _TOKENS),
    "request_params_n": ("answers that a request asked for", (1, 2, 5, 10, 20, 50, 128)),
    "request_params_max_tokens": ("max_tokens of a request", _TOKENS),
    "iteration_tokens_total": ("tokens of a step of the engine", STEP_TOKENS),
    "grammar_compilation_time_seconds": ("of a grammar that was compiled", SECONDS),
}

_GAUGES = {
    "num_requests_running": "requests that run",
    "num_requests_waiting": "requests that wait",
    "kv_cache_usage_perc": "used share of the KV cache, 1 is all",
    "mamba_usage": "used share of the states of linear attention, 1 is all",
    "mamba_available_tokens": "states of linear attention that a request could take",
    "num_states": "states of linear attention in use",
    "num_kept_states": "snapshots of states for prompts to come",
    "n_tokens_max": "most tokens of a request so far, prompt and answer",
}

_COUNTERS = {
    "prefix_cache_queries": "tokens that were looked for",
    "prefix_cache_hits": "tokens of them that were found",
    "num_preemptions": "requests whose KV was taken for others",
    "state_snapshots": "snapshots of states that were made",
    "state_evictions": "snapshots taken for others",
    "spec_decode_num_drafts": "steps of requests with drafts",
    "spec_decode_num_draft_tokens": "tokens that were drafted",
    "spec_decode_num_accepted_tokens": "drafted tokens that were right",
    "generation_tokens": "tokens that were generated",
    "num_aborted_requests": "requests that were aborted",
    "num_steps": "steps of the engine",
    "num_grammar_timeout": "grammars that took too long",
    "prompt_tokens": "tokens of prompts that ended",
    "prompt_tokens_cached": "tokens of prompts whose KV was there already",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"


class Metrics:
    """The metrics of one server.

    Args:
        model_name: the label of all of them.

    Attributes:
        gaps: between two outputs of a stream.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._engine: LLMEngine | None = None
        self._config: EngineConfig | None = None
        self._tallies = {name: Tally(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        # Sums of requests, and of the engines before the one that runs.
        self._sums: dict[str, float] = dict.fromkeys(_COUNTERS, 0)
        self._ends: dict[str, int] = {}
        self._per_position: dict[int, int] = {}
        self._most_tokens = 0
        self.gaps = self._tallies["inter_token_latency_seconds"]

    def attach(self, engine: LLMEngine) -> None:
        """Read this engine from now on."""
        self._engine = engine
        self._config = engine.config

    def detach(self) -> None:
        """Keep what the engine has counted, and let go of it."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        for name, value in _counts(engine).items():
            self._sums[name] += value
        for place, count in engine.core.stats.spec_decode_num_accepted_tokens_per_pos.items():
            self._per_position[place] = self._per_position.get(place, 0) + count
        for name, tally in _tallies(engine).items():
            self._tallies[name].add_all(tally)

    def record_end(
        self,
        metrics: RequestMetrics,
        reason: str,
        *,
        n: int,
        max_tokens: int,
        num_tokens: int,
    ) -> None:
        """Add a request that has ended; ``num_tokens`` are of its prompt and its longest answer."""
        self._end(reason)
        self._sums["prompt_tokens"] += metrics.num_prompt_tokens
        self._sums["prompt_tokens_cached"] += metrics.num_cached_tokens
        self._most_tokens = max(self._most_tokens, num_tokens)
        first_s, last_s = metrics.first_token_s, metrics.last_token_s
        values = {
            "request_prompt_tokens": metrics.num_prompt_tokens,
            "request_generation_tokens": metrics.num_generated_tokens,
            "request_params_n": n,
            "request_params_max_tokens": max_tokens,
            "time_to_first_token_seconds": _seconds(metrics.ttft_ms),
            "request_time_per_output_token_seconds": _seconds(metrics.mean_tpot_ms),
            "request_queue_time_seconds": _seconds(metrics.queue_ms),
            "request_prefill_time_seconds": _seconds(metrics.prefill_ms),
        }
        if first_s is not None and last_s is not None:
            values["request_decode_time_seconds"] = last_s - first_s
            values["e2e_request_latency_seconds"] = last_s - metrics.arrival_s
        for name, value in values.items():
            if value is not None:
                self._tallies[name].add(value)

    def record_abort(self) -> None:
        """Count a request whose client left before anything of its answer was there."""
        self._end("abort")

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """Return nothing: names are not looked for among those of other collectors."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the moment."""
        engine = self._engine
        for name, value in self._gauges(engine).items():
            yield self._with(
                GaugeMetricFamily(f"pyvt:{name}", _GAUGES[name], labels=(_MODEL,)), value
            )
        counts = {} if engine is None else _counts(engine)
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"pyvt:{name}", text, labels=(_MODEL,))
            yield self._with(family, self._sums[name] + counts.get(name, 0))
        yield self._ends_by_reason()
        yield self._accepted_by_position(engine)
        yield from self._histograms(engine)
        if self._config is not None:
            yield self._cache_info(self._config.cache)

    def _end(self, reason: str) -> None:
        self._ends[reason] = self._ends.get(reason, 0) + 1

    def _with(self, family: Any, value: float) -> Metric:
        family.add_metric((self.model_name,), value)
        return family  # type: ignore[no-any-return]

    def _gauges(self, engine: LLMEngine | None) -> dict[str, float]:
        """Return what is so now; a model that is not loaded has nothing in use."""
        gauges: dict[str, float] = {**dict.fromkeys(_GAUGES, 0), "n_tokens_max": self._most_tokens}
        if engine is None:
            return gauges
        queues = engine.core.scheduler.stats()
        num_slots = queues.num_states + queues.num_free_states
        return gauges | {
            "num_requests_running": queues.num_running,
            "num_requests_waiting": queues.num_waiting,
            "kv_cache_usage_perc": queues.kv_cache_usage,
            "mamba_usage": queues.num_states / max(num_slots, 1),
            "mamba_available_tokens": queues.num_free_states,
            "num_states": queues.num_states,
            "num_kept_states": queues.num_kept_states,
        }

    def _ends_by_reason(self) -> Metric:
        family = CounterMetricFamily(
            "pyvt:request_success",
            "requests that ended, by reason",
            labels=(_MODEL, "finished_reason"),
        )
        for reason, count in sorted(self._ends.items()):
            family.add_metric((self.model_name, reason), count)
        return family

    def _accepted_by_position(self, engine: LLMEngine | None) -> Metric:
        """Return drafts that were right by their place in a draft; each place there may be."""
        family = CounterMetricFamily(
            f"pyvt:{_PER_POSITION}",
            "drafted tokens that were right, by their place in the draft",
            labels=(_MODEL, "position"),
        )
        speculative = None if self._config is None else self._config.speculative
        if speculative is None or speculative.speculation is None:
            return family
        now = {} if engine is None else engine.core.stats.spec_decode_num_accepted_tokens_per_pos
        for place in range(speculative.num_speculative_tokens):
            count = self._per_position.get(place, 0) + now.get(place, 0)
            family.add_metric((self.model_name, str(place)), count)
        return family

    def _histograms(self, engine: LLMEngine | None) -> Iterator[Metric]:
        more = {} if engine is None else _tallies(engine)
        for name, (text, bounds) in _HISTOGRAMS.items():
            tally = Tally(bounds)
            tally.add_all(self._tallies[name])
            if name in more:
                tally.add_all(more[name])
            family = HistogramMetricFamily(f"pyvt:{name}", text, labels=(_MODEL,))
            family.add_metric((self.model_name,), list(tally.buckets()), tally.sum)
            yield family

    def _cache_info(self, cache: CacheConfig) -> Metric:
        info = {_MODEL: self.model_name, "num_gpu_blocks": str(cache.num_blocks)}
        info |= {field.name: str(getattr(cache, field.name)) for field in fields(cache)}
        family = GaugeMetricFamily(
            "pyvt:cache_config_info", "settings of the KV cache", labels=tuple(info)
        )
        family.add_metric(tuple(info.values()), 1)
        return family


def _counts(engine: LLMEngine) -> dict[str, float]:
    """Return what an engine has counted."""
    queues, stats = engine.core.scheduler.stats(), engine.core.stats
    compiler = engine.input_processor.compiler
    return {
        "prefix_cache_queries": queues.prefix_queries,
        "prefix_cache_hits": queues.prefix_hits,
        "num_preemptions": queues.num_preemptions,
        "state_snapshots": queues.num_snapshots,
        "state_evictions": queues.num_state_evictions,
        "spec_decode_num_drafts": stats.spec_decode_num_drafts,
        "spec_decode_num_draft_tokens": stats.spec_decode_num_draft_tokens,
        "spec_decode_num_accepted_tokens": stats.spec_decode_num_accepted_tokens,
        "generation_tokens": stats.num_generation_tokens,
        "num_aborted_requests": stats.num_finished["abort"],
        "num_steps": stats.num_steps,
        "num_grammar_timeout": 0 if compiler is None else compiler.num_timeouts,
    }


def _tallies(engine: LLMEngine) -> dict[str, Tally]:
    compiler = engine.input_processor.compiler
    found = {"iteration_tokens_total": engine.core.stats.iteration_tokens}
    if compiler is not None:
        found["grammar_compilation_time_seconds"] = compiler.times
    return found


def _seconds(span_ms: float | None) -> float | None:
    return None if span_ms is None else span_ms / 1000
