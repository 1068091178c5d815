"""ModelRunner: one step of the engine, from a SchedulerOutput to sampled tokens."""

from pyvt.config import EngineConfig
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import ConfigError
from pyvt.mathutil import cdiv
from pyvt.messages import ModelRunnerOutput, SchedulerOutput
from pyvt.models.base import CausalLM
from pyvt.worker.graph_runner import GraphRunner
from pyvt.worker.input_batch import InputBatch
from pyvt.worker.kv_cache import KVCache
from pyvt.worker.prepare_inputs import StepInputs, prepare_inputs
from pyvt.worker.sampler import Sampled, sample


class ModelRunner:
    """Runs a model over the rows of all requests; owns the rows and the KV cache."""

    def __init__(self, model: CausalLM, kv_cache: KVCache, config: EngineConfig) -> None:
        """``config`` is resolved: its ``max_model_len`` is a number."""
        if config.max_model_len == "auto":
            raise ConfigError(
                "[worker] max_model_len: expected a number, got 'auto'; resolve the config first",
                field="max_model_len",
            )
        self.model = model
        self.kv_cache = kv_cache
        self.rows = InputBatch(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=kv_cache.block_size,
            vocab_size=model.config.vocab_size,
        )
        max_blocks = cdiv(config.max_model_len, kv_cache.block_size)
        self.graphs = GraphRunner(model, max_blocks, selected_backend())

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Update the rows, run the step's tokens, and sample for requests that are up to date.

        Called once a step by the engine. A request whose logits are not finite, or that no token is
        allowed for, comes back as an error; the others are not touched by it.
        """
        self.rows.update(output)
        if not output.num_scheduled_tokens:
            return ModelRunnerOutput(sampled_token_ids={})
        step = prepare_inputs(self.rows, output.num_scheduled_tokens, self.kv_cache.layers)
        hidden = self.graphs.forward(step)
        if not step.sampled:
            return ModelRunnerOutput(sampled_token_ids={})
        sampled = self._greedy(step) or sample(
            self.graphs.logits(step, hidden), step.sampled, self.rows
        )
        for request_id, token_id in sampled.token_ids.items():
            self.rows.append_token(self.rows[request_id], token_id)
        return ModelRunnerOutput(
            sampled_token_ids={k: (v,) for k, v in sampled.token_ids.items()},
            logprobs={k: (v,) for k, v in sampled.logprobs.items()},
            errors=sampled.errors,
        )

    def _greedy(self, step: StepInputs) -> Sampled | None:
        """Return what the step's plan found, where that is what all its requests ask for."""
        if not all(request.takes_most_likely for request in step.sampled):
            return None
        tokens = self.graphs.greedy_tokens(step)
        if tokens is None:
            return None
        ids = (request.request_id for request in step.sampled)
        return Sampled(token_ids=dict(zip(ids, tokens, strict=True)))
