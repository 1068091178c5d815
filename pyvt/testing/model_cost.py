"""What a model must read and multiply: the least that any engine can do, for shares of a limit."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pyvt.config.model import ModelConfig
from pyvt.models.registry import model_config
from pyvt.testing.bench_limits import Limits
from pyvt.weights.resolve import open_model
from pyvt.weights.source import TensorInfo

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_EXPERTS = ".mlp.experts."


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Bytes and operations of matrices; attention and the rest are not counted.

    Attributes:
        file_bytes: all tensors.
        step_bytes: matrices that a decode step reads, the head among them; of experts the share
            that a token gets.
        layer_ops: operations of a token in the layers, by format; a multiply and an add are two.
        head_ops: those of a row of logits.
        dtype: that of activations.
    """

    file_bytes: int
    step_bytes: int
    layer_ops: Counter[str] = field(default_factory=Counter)
    head_ops: Counter[str] = field(default_factory=Counter)
    dtype: str = "f32"

    @classmethod
    def of(cls, path: str | Path, dtype: str = "f32") -> "ModelCost":
        """Return the cost of the model at a path, from its headers, for activations of a dtype."""
        files = open_model(path)
        try:
            config = model_config(files)
            infos = [files.source.info(name) for name in files.source.names()]
        finally:
            files.close()
        is_tied = config.tie_word_embeddings
        head = _EMBEDDING if is_tied else _HEAD
        matrices = [info for info in infos if len(info.shape) >= 2]
        cost = cls(
            file_bytes=sum(info.nbytes for info in infos),
            step_bytes=sum(
                _of_a_token(config, info, info.nbytes)
                for info in matrices
                if info.name != _EMBEDDING or is_tied
            ),
            dtype=dtype,
        )
        for info in matrices:
            if info.name == head:
                cost.head_ops[info.dtype.name] += 2 * info.size
            elif info.name != _EMBEDDING:
                cost.layer_ops[info.dtype.name] += 2 * _of_a_token(config, info, info.size)
        return cost

    def read_share(self, seconds: float, limits: Limits) -> float:
        """Return the share of the read limit that a step of these seconds reached."""
        return self.step_bytes / (limits.read * 1e9) / seconds

    def loop_share(
        self, seconds: float, limits: Limits, *, num_tokens: int, num_logits: int
    ) -> float:
        """Return the share of the formats' multiply-add loops that these seconds reached."""
        least_s = sum(
            count * ops / (limits.of_format(name, self.dtype) * 1e9)
            for count, by_format in ((num_tokens, self.layer_ops), (num_logits, self.head_ops))
            for name, ops in by_format.items()
        )
        return least_s / seconds


def _of_a_token(config: ModelConfig, info: TensorInfo, count: int) -> int:
    """Return the part of a count of a matrix's bytes or elements that one token needs."""
    if config.moe is None or _EXPERTS not in info.name:
        return count
    return count * config.moe.num_experts_per_tok // config.moe.num_experts
