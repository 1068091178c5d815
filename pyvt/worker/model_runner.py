"""ModelRunner: one step of the engine, from a SchedulerOutput to sampled tokens."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.config import EngineConfig
from pyvt.config.speculative import MTP_METHOD
from pyvt.dispatch import computing_on, fetch, on_host
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import ConfigError, OutOfMemoryError
from pyvt.kv_tier.connector import KVConnector, KVLayout
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.log import get_logger
from pyvt.mathutil import cdiv
from pyvt.messages import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from pyvt.models.base import CausalLM
from pyvt.spec_decode import make_proposer
from pyvt.worker.device_graphs import DeviceGraphs
from pyvt.worker.drafter import HeadDrafter
from pyvt.worker.graph_runner import GraphRunner
from pyvt.worker.input_batch import InputBatch, RequestRow
from pyvt.worker.kv_cache import KVCache
from pyvt.worker.logprobs import prompt_logprobs
from pyvt.worker.prepare_inputs import StepInputs, prepare_ahead, prepare_inputs
from pyvt.worker.sampler import Sampled, start_sampling

log = get_logger(__name__)

Array = np.ndarray[Any, Any]


class ModelRunner:
    """Runs a model over the rows of all requests; owns the rows and the KV cache.

    Attributes:
        observe_prompt: called in a step with the hidden states ``[n, H]`` of the prompt tokens of a
            request that asks for log-probabilities and that a prompt token follows; for
            evaluation, which runs one request at a time. They are valid during the call.
        is_overlapping: whether the next step is prepared while a device computes.
    """

    def __init__(
        self,
        model: CausalLM,
        kv_cache: KVCache,
        config: EngineConfig,
        *,
        connector: KVConnector | None = None,
        unused_ids: frozenset[int] = frozenset(),
    ) -> None:
        """``config`` is resolved: its ``max_model_len`` is a number.

        ``unused_ids`` are those of logits that stand for no token.
        """
        if config.max_model_len == "auto":
            raise ConfigError(
                "[worker] max_model_len: expected a number, got 'auto'; resolve the config first",
                field="max_model_len",
            )
        self.model = model
        self.kv_cache = kv_cache
        self.connector = connector
        if connector is not None:
            layout = KVLayout(
                block_size=kv_cache.block_size, groups=kv_cache.groups, blocks=kv_cache
            )
            connector.register_kv_caches(kv_cache.tensors(), layout)
        self.rows = InputBatch(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=kv_cache.block_size,
            vocab_size=model.config.vocab_size,
            num_groups=len(kv_cache.groups),
            unused_ids=sorted(unused_ids),
        )
        self._not_sampled = unused_ids | {ops.NO_TOKEN}
        max_blocks = cdiv(config.max_model_len, kv_cache.block_size)
        self.proposer = make_proposer(config.speculative)
        backend = selected_backend()
        self._backend = backend.name
        self.drafter: HeadDrafter | None = None
        if config.speculative.speculation == MTP_METHOD:
            self.drafter = HeadDrafter(model, self.rows, backend.device)
        self._batch: ForwardBatch | None = None
        self.max_drafts = config.speculative.num_speculative_tokens
        self.observe_prompt: Callable[[Array], None] | None = None
        self.is_processed = config.logprobs_mode == "processed_logprobs"
        self.is_overlapping = backend.device is not None
        self.graphs: GraphRunner | DeviceGraphs = (
            GraphRunner(model, max_blocks, backend)
            if backend.device is None
            else DeviceGraphs(model, max_blocks, backend.device)
        )

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Update the rows, run the step's tokens, and sample for requests that are up to date.

        Called once a step by the engine. A request whose logits are not finite, or that no token is
        allowed for, comes back as an error; the others are not touched by it. Where a device has
        not the memory for a step, all its requests do: what they hold is freed, the rest goes on.
        """
        with computing_on(self._backend):
            return self._execute(output)

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.rows.update(output)
        self.kv_cache.copy_blocks(output.block_copies)
        if self.connector is None:
            return self._run_or_fail(output)
        self._load(self.connector, output)
        answer = self._run_or_fail(output)
        batch, self._batch = self._batch, None
        for layer, kv in enumerate(self.kv_cache.layers if batch is not None else ()):
            self.connector.save_kv_layer(layer, kv, batch)
        self.connector.wait_for_save()
        return replace(answer, transfers=self.connector.get_transfer_results())

    def _load(self, connector: KVConnector, output: SchedulerOutput) -> None:
        """Start the loads of a step and wait for those that it reads."""
        connector.handle_preemptions(output.transfers)
        connector.start_load_kv(output.transfers)
        for layer in range(len(self.kv_cache.layers)):
            connector.wait_for_layer_load(layer)

    def _run_or_fail(self, output: SchedulerOutput) -> ModelRunnerOutput:
        try:
            return self._run(output)
        except OutOfMemoryError as error:
            text = f"[worker] step of {sum(output.num_scheduled_tokens.values())} tokens: {error}"
            log.error("%s", text)
            # States may have moved on in place, so no request of the step can go on.
            return ModelRunnerOutput(
                sampled_token_ids={}, errors=dict.fromkeys(output.num_scheduled_tokens, text)
            )

    def _run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the tokens of a step whose blocks are ready."""
        if not output.num_scheduled_tokens:
            return ModelRunnerOutput(sampled_token_ids={})
        drafts = output.draft_token_ids
        self.rows.place_drafts(drafts)
        step = prepare_inputs(
            self.rows,
            output.num_scheduled_tokens,
            self.kv_cache.layers,
            self.kv_cache.layer_groups,
            drafts,
            output.state_slots,
        )
        hidden = self.graphs.forward(step)
        self._batch = step.batch
        errors = self._add_prompt_logprobs(step, hidden)
        _pool_prompts(step, hidden)
        if not step.wanted:
            self._propose(step, hidden, {}, drafts)
            return ModelRunnerOutput(sampled_token_ids={}, errors=errors)
        sampled = self._sampled(step, hidden)
        self.rows.append_sampled(sampled.token_ids)
        return ModelRunnerOutput(
            sampled_token_ids=sampled.token_ids,
            draft_token_ids=self._propose(step, hidden, sampled.token_ids, drafts),
            logprobs=sampled.logprobs,
            prompt_logprobs=_finished_prompts(step.requests, sampled.token_ids),
            pooled=_pooled_prompts(step.requests, sampled.token_ids),
            complete=self._complete(sampled.token_ids),
            errors=errors | sampled.errors,
        )

    def _sampled(self, step: StepInputs, hidden: Array) -> Sampled:
        """Return the tokens of a step; while a device computes them the next step is prepared."""
        if all([request.takes_most_likely and not ahead for request, ahead in step.wanted]):
            found = self._greedy(step, hidden)
            if found is not None:
                return found
        # Drafts are verified by the sampler, and it says why a row has no token.
        sampling = start_sampling(
            self.graphs.logits(step, hidden), step.wanted, self.rows, is_processed=self.is_processed
        )
        self._prepare_ahead()
        return sampling.finish()

    def _greedy(self, step: StepInputs, hidden: Array) -> Sampled | None:
        """Return the most likely tokens; None where a row has none, or one that stands for none.

        So logits are read once, not once more to count what is not finite.
        """
        started = self.graphs.start_greedy(step)
        fetched = started or fetch([ops.argmax(self.graphs.logits(step, hidden))])
        self._prepare_ahead()
        *counts, best = fetched.arrays()
        tokens = best.tolist()
        if started is not None:
            if any(counts[0].tolist()):
                return None
            indices = step.batch.logits_indices
            tokens = tokens if len(indices) == len(tokens) else [tokens[i] for i in indices]
        if not self._not_sampled.isdisjoint(tokens):
            return None
        ids = (row.request.request_id for row in step.wanted)
        return Sampled(token_ids=dict(zip(ids, zip(tokens, strict=True), strict=True)))

    def _prepare_ahead(self) -> None:
        """Prepare the next step while a device computes; a host has no time to spare."""
        if self.is_overlapping and isinstance(self.graphs, DeviceGraphs):
            self.graphs.prepare(prepare_ahead(self.rows))

    def _propose(
        self,
        step: StepInputs,
        hidden: Array,
        sampled: Mapping[str, tuple[int, ...]],
        verified: Mapping[str, tuple[int, ...]],
    ) -> dict[str, tuple[int, ...]]:
        """Return drafts for requests that may go on; those that a grammar forbids are left out."""
        if self.drafter is not None:
            limits = self._draft_limits(sampled, verified)
            found = self.drafter.draft(step, hidden, sampled, verified, limits)
        elif self.proposer is not None:
            found = {
                request_id: self.proposer.propose(self.rows.known_tokens(self.rows[request_id]), n)
                for request_id, n in self._draft_limits(sampled, verified).items()
            }
        else:
            return {}
        allowed = {}
        for request_id, drafts in found.items():
            matcher = self.rows[request_id].matcher
            kept = drafts if matcher is None or not drafts else matcher.filter_drafts(drafts)
            if kept:
                allowed[request_id] = kept
        return allowed

    def _draft_limits(
        self, sampled: Mapping[str, tuple[int, ...]], verified: Mapping[str, tuple[int, ...]]
    ) -> dict[str, int]:
        """Return the most drafts of each request that may go on.

        A request whose drafts were all right may get twice as many, another one more than were
        right.
        """
        limits = {}
        for request_id, token_ids in sampled.items():
            request = self.rows[request_id]
            known = self.rows.known_tokens(request)
            max_tokens = request.params.max_tokens
            assert max_tokens is not None, "the input processor resolves max_tokens"
            # A step gives one token more than it has drafts.
            num_left = max_tokens - (len(known) - request.num_prompt_tokens) - 1
            if token_ids[-1] in request.ending_ids or num_left < 1:
                continue
            limit = request.num_drafts or self.max_drafts
            if request_id in verified:
                num_right = len(token_ids) - 1
                is_all = num_right == len(verified[request_id])
                limit = min(2 * limit, self.max_drafts) if is_all else num_right + 1
                request.num_drafts = limit
            limits[request_id] = min(limit, num_left)
        return limits

    def _complete(self, sampled: Iterable[str]) -> frozenset[str]:
        """Return the requests without tokens left whose text could only have ended."""
        found = set()
        for request_id in sampled:
            request = self.rows[request_id]
            if request.matcher is None:
                continue
            num_output = self.rows.num_tokens[request.row] - request.num_prompt_tokens
            if num_output == request.params.max_tokens and request.matcher.is_complete:
                found.add(request_id)
        return frozenset(found)

    def _add_prompt_logprobs(self, step: StepInputs, hidden: Array) -> dict[str, str]:
        """Add entries for the prompt tokens that follow this step's; return errors by request."""
        errors = {}
        asked = [i for i, r in enumerate(step.requests) if r.prompt_logprobs is not None]
        for i in asked:
            request = step.requests[i]
            start, end = step.batch.cu_seqlens_q[i : i + 2].tolist()
            first = int(step.batch.positions[start])
            end = min(end, start + request.num_prompt_tokens - 1 - first)
            next_ids = self.rows.token_ids[request.row, first + 1 : first + 1 + end - start]
            if self.observe_prompt is not None:
                self.observe_prompt(on_host(hidden[start:end]))
            num_top = request.params.prompt_logprobs or 0
            found = prompt_logprobs(self.model, hidden[start:end], next_ids, num_top)
            if found is None:
                errors[request.request_id] = (
                    "[sampler] prompt_logprobs: expected finite logits, got others; the weights or "
                    "the file are damaged, check with pyvt inspect"
                )
            elif request.prompt_logprobs is not None:
                request.prompt_logprobs += found
        return errors


def _pool_prompts(step: StepInputs, hidden: Array) -> None:
    """Add hidden states ``[T, H]`` of prompt tokens where the prompt's vector is asked for."""
    for i, request in enumerate(step.requests):
        if request.pooled is None:
            continue
        start, end = step.batch.cu_seqlens_q[i : i + 2].tolist()
        first = int(step.batch.positions[start])
        states = on_host(hidden[start : min(end, start + request.num_prompt_tokens - first)])
        if request.params.prompt_pooling == "last":
            request.pooled = states[-1].astype(np.float64)
        else:
            added = states.sum(axis=0, dtype=np.float64)
            request.pooled = request.pooled + added if request.pooled.size else added


def _pooled_prompts(
    requests: Iterable[RequestRow], sampled: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[float, ...]]:
    """Return the vectors of prompts that have just ended, each once."""
    found = {}
    for request in [r for r in requests if r.pooled is not None]:
        if request.request_id in sampled:
            pooled, request.pooled = request.pooled, None
            assert pooled is not None, "the prompt has had a step"
            is_mean = request.params.prompt_pooling == "mean"
            pooled = pooled / request.num_prompt_tokens if is_mean else pooled
            found[request.request_id] = tuple(pooled.tolist())
    return found


def _finished_prompts(
    requests: Iterable[RequestRow], sampled: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[TokenLogprobs, ...]]:
    """Return the entries of prompts that have just ended, each once."""
    found = {}
    for request in [r for r in requests if r.prompt_logprobs is not None]:
        if request.request_id in sampled:
            entries, request.prompt_logprobs = request.prompt_logprobs, None
            found[request.request_id] = tuple(entries or ())
    return found
