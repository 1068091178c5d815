"""Prometheus metrics: vLLM's names behind ``pyvt:``, read from the engine when they are asked for.

Gauges and engine counters are read at the scrape; histograms are fed when a request ends. The only
label is the reason of an end: a label with many values would grow without bound.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from pyvt.engine.llm_engine import LLMEngine
from pyvt.outputs import RequestMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("from arrival to the first token", _SECONDS),
    "request_time_per_output_token_seconds": ("mean of each token after the first", _SECONDS),
    "e2e_request_latency_seconds": ("from arrival to the last token", _SECONDS),
    "request_queue_time_seconds": ("from arrival to the first step", _SECONDS),
    "request_prefill_time_seconds": ("from the first step to the first token", _SECONDS),
    "request_decode_time_seconds": ("from the first token to the last", _SECONDS),
    "request_prompt_tokens": ("tokens of a prompt", _TOKENS),
    "request_generation_tokens": ("tokens of the answers to a request", _TOKENS),
    "request_params_n": ("answers that a request asked for", (1, 2, 5, 10, 20, 50, 128)),
    "request_params_max_tokens": ("max_tokens of a request", _TOKENS),
}


class Gaps:
    """The histogram of the time between two outputs of a stream.

    Added to for each token, so it is a list of counts and no object of the library's, which takes
    twenty times as long.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count one, or several of the same length."""
        self.counts[bisect_left(_SECONDS, seconds)] += count
        self.sum_s += seconds * count

    def describe(self) -> list[Any]:
        """Return nothing: the name is not looked for among others."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the histogram; its buckets count what is below their bound."""
        names = [*map(str, _SECONDS), "+Inf"]
        buckets = list(zip(names, accumulate(self.counts), strict=True))
        yield HistogramMetricFamily(
            "pyvt:inter_token_latency_seconds",
            "between two outputs of a stream",
            buckets=buckets,
            sum_value=self.sum_s,
        )


class Metrics:
    """The metrics of one server.

    Attributes:
        gaps: between two outputs of a stream.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine: LLMEngine | None = None
        self._histograms = {
            name: Histogram(f"pyvt:{name}", text, registry=self.registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._ends = Counter(
            "pyvt:request_success",
            "requests that ended, by reason",
            ("finished_reason",),
            registry=self.registry,
        )
        self._prompt_tokens = Counter(
            "pyvt:prompt_tokens", "tokens of prompts that ended", registry=self.registry
        )
        self._cached_tokens = Counter(
            "pyvt:prompt_tokens_cached",
            "tokens of prompts whose KV was there already",
            registry=self.registry,
        )
        self.gaps = Gaps()
        self.registry.register(self.gaps)
        self.registry.register(_EngineCollector(self))

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._histograms[name].observe(value)

    def record_end(self, metrics: RequestMetrics, reason: str, *, n: int, max_tokens: int) -> None:
        """Add a request that has ended."""
        self._ends.labels(finished_reason=reason).inc()
        self._prompt_tokens.inc(metrics.num_prompt_tokens)
        self._cached_tokens.inc(metrics.num_cached_tokens)
        self.observe("request_prompt_tokens", metrics.num_prompt_tokens)
        self.observe("request_generation_tokens", metrics.num_generated_tokens)
        self.observe("request_params_n", n)
        self.observe("request_params_max_tokens", max_tokens)
        first_s, last_s = metrics.first_token_s, metrics.last_token_s
        spans = {
            "time_to_first_token_seconds": _seconds(metrics.ttft_ms),
            "request_time_per_output_token_seconds": _seconds(metrics.mean_tpot_ms),
            "request_queue_time_seconds": _seconds(metrics.queue_ms),
            "request_prefill_time_seconds": _seconds(metrics.prefill_ms),
        }
        if first_s is not None and last_s is not None:
            spans["request_decode_time_seconds"] = last_s - first_s
            spans["e2e_request_latency_seconds"] = last_s - metrics.arrival_s
        for name, value in spans.items():
            if value is not None:
                self.observe(name, value)

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry)


class _EngineCollector:
    """What the engine knows by itself."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Any]:
        """Return nothing: names are not checked for doubles against an engine that may not run."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield gauges and counters of the moment."""
        engine = self._metrics.engine
        if engine is None:
            return
        queues, stats = engine.core.scheduler.stats(), engine.core.stats
        for name, text, value in (
            ("num_requests_running", "requests that run", queues.num_running),
            ("num_requests_waiting", "requests that wait", queues.num_waiting),
            ("kv_cache_usage_perc", "used share of the KV cache, 1 is all", queues.kv_cache_usage),
            ("num_states", "states of linear attention in use", queues.num_states),
            ("num_kept_states", "snapshots of states for prompts to come", queues.num_kept_states),
        ):
            yield GaugeMetricFamily(f"pyvt:{name}", text, value=value)
        aborted = stats.num_finished["abort"]
        for name, text, value in (
            ("prefix_cache_queries", "tokens that were looked for", queues.prefix_queries),
            ("prefix_cache_hits", "tokens of them that were found", queues.prefix_hits),
            ("num_preemptions", "requests whose KV was taken for others", queues.num_preemptions),
            ("state_snapshots", "snapshots of states that were made", queues.num_snapshots),
            ("state_evictions", "snapshots taken for others", queues.num_state_evictions),
            (
                "spec_decode_num_drafts",
                "steps of requests with drafts",
                stats.spec_decode_num_drafts,
            ),
            (
                "spec_decode_num_draft_tokens",
                "tokens that were drafted",
                stats.spec_decode_num_draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens",
                "drafted tokens that were right",
                stats.spec_decode_num_accepted_tokens,
            ),
            ("generation_tokens", "tokens that were generated", stats.num_generation_tokens),
            ("num_aborted_requests", "requests that were aborted", aborted),
            ("num_steps", "steps of the engine", stats.num_steps),
        ):
            yield CounterMetricFamily(f"pyvt:{name}", text, value=value)
        cache = engine.config.cache
        info = {"block_size": str(cache.block_size), "num_gpu_blocks": str(cache.num_blocks)}
        family = GaugeMetricFamily(
            "pyvt:cache_config_info", "settings of the KV cache", labels=list(info)
        )
        family.add_metric(list(info.values()), 1)
        yield family


def _seconds(span_ms: float | None) -> float | None:
    return None if span_ms is None else span_ms / 1000
