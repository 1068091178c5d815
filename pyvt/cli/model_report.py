"""What ``pyvt inspect`` says of a model: facts as plain data, from headers and small files only."""

from dataclasses import asdict, dataclass
from typing import Any

from pyvt.config import KVCacheSpec, StateSpec
from pyvt.config.model import ModelConfig
from pyvt.errors import RequestError
from pyvt.models.registry import model_config
from pyvt.tensor.dtype import F16, F32, DType
from pyvt.tokenizer.base import Tokenizer
from pyvt.tokenizer.chat_template import ChatTemplate
from pyvt.tokenizer.gguf import gguf_tokenizer
from pyvt.tokenizer.hf import hf_tokenizer
from pyvt.weights.resolve import ModelFiles
from pyvt.weights.source import TensorInfo

KV_DTYPES = (F32, F16)
TOKENS_OF_A_ROW = 1024


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The facts of an open model; ``as_dict`` is what ``--json`` prints.

    Raises (when made) UnsupportedError for a model that pyvt does not run, ConfigError or
    CheckpointError for files that contradict themselves.
    """

    files: ModelFiles
    config: ModelConfig
    infos: tuple[TensorInfo, ...]
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, files: ModelFiles) -> "ModelReport":
        """Read the facts of an open model."""
        infos = tuple(files.source.info(name) for name in files.source.names())
        return cls(files, model_config(files), infos, read_tokenizer(files))

    def as_dict(self) -> dict[str, Any]:
        """Return every fact but the list of tensors."""
        return {
            "path": str(self.files.path),
            "format": self.files.kind,
            "architecture": self.config.architecture,
            "family": self.config.family,
            "parameters": sum(info.size for info in self.infos),
            "weight_bytes": sum(info.nbytes for info in self.infos),
            "quantization": self.quant_mix(),
            "config": self.sizes(),
            "rope": asdict(self.config.rope),
            "moe": self.experts(),
            "linear_attention": self.linear_attention(),
            "context": self.config.max_position_embeddings,
            "sliding_windows": self.windows(),
            "eos_token_ids": self.eos_token_ids(),
            "sampling_defaults": asdict(self.config.sampling_defaults),
            "tokenizer": self.tokenizer_facts(),
            "chat_templates": dict(self.files.chat_templates),
            "chat_preview": self.chat_preview(),
            "memory": self.memory(),
        }

    def quant_mix(self) -> list[dict[str, Any]]:
        """Return one row for each element type: tensors, parameters, bytes, most bytes first."""
        rows: dict[str, dict[str, Any]] = {}
        for info in self.infos:
            row = rows.setdefault(
                info.dtype.name,
                {
                    "dtype": info.dtype.name,
                    "bits_per_weight": info.dtype.bits_per_element,
                    "tensors": 0,
                    "parameters": 0,
                    "bytes": 0,
                },
            )
            row["tensors"] += 1
            row["parameters"] += info.size
            row["bytes"] += info.nbytes
        return sorted(rows.values(), key=lambda row: -int(row["bytes"]))

    def tensors(self) -> list[dict[str, Any]]:
        """Return one row for each tensor, in file order."""
        return [
            {
                "name": info.name,
                "dtype": info.dtype.name,
                "shape": list(info.shape),
                "bytes": info.nbytes,
                "file": info.path.name,
            }
            for info in self.infos
        ]

    def sizes(self) -> dict[str, Any]:
        """Return the sizes of the decoder."""
        names = (
            *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"),
            *("num_kv_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings"),
            *("attention_bias", "mlp_bias", "qk_norm"),
        )
        return {name: getattr(self.config, name) for name in names}

    def experts(self) -> dict[str, Any] | None:
        """Return the experts of sparse layers, and the parameters that a token needs; else None."""
        moe = self.config.moe
        if moe is None:
            return None
        of_experts = sum(info.size for info in self.infos if ".mlp.experts." in info.name)
        others = sum(info.size for info in self.infos) - of_experts
        return asdict(moe) | {
            "num_sparse_layers": self.config.num_layers - len(moe.dense_layers),
            "active_parameters": others + of_experts * moe.num_experts_per_tok // moe.num_experts,
        }

    def linear_attention(self) -> dict[str, Any] | None:
        """Return the layers with a state in place of KV and its bytes in f32; else None."""
        linear = self.config.linear_attention
        if linear is None:
            return None
        layer = StateSpec(
            conv_shape=linear.conv_shape,
            state_shape=linear.state_shape,
            conv_dtype=F32,
            state_dtype=F32,
        )
        num_layers = len(self.config.linear_layers)
        return asdict(linear) | {
            "num_layers": num_layers,
            "bytes_per_state": num_layers * layer.nbytes,
            "num_mtp_layers": self.config.num_mtp_layers,
        }

    def windows(self) -> dict[str, int]:
        """Return how many layers have each sliding window; empty where all see every key."""
        windows = [window for window in self.config.sliding_windows if window is not None]
        return {str(window): windows.count(window) for window in sorted(set(windows))}

    def chat_preview(self) -> dict[str, str] | None:
        """Return a short chat as the template writes it, or its error; None without a template."""
        templates = self.files.chat_templates
        if not templates:
            return None
        if self.tokenizer is None:
            template = ChatTemplate(templates, {}, control_texts=())
        else:
            template = ChatTemplate.for_tokenizer(templates, self.tokenizer)
        try:
            return {"text": template.preview()}
        except RequestError as error:
            return {"error": str(error)}

    def memory(self) -> dict[str, Any]:
        """Return bytes: weights as stored and as f32, and KV cache for each 1,024 tokens."""
        return {
            "weights_bytes": sum(info.nbytes for info in self.infos),
            "weights_f32_bytes": F32.block_bytes * sum(info.size for info in self.infos),
            "kv_bytes_per_1k_tokens": {dtype.name: self._kv_bytes(dtype) for dtype in KV_DTYPES},
        }

    def eos_token_ids(self) -> list[int]:
        """Return the ids that end a text: the config files' and the tokenizer's."""
        of_tokenizer = () if self.tokenizer is None else self.tokenizer.eos_token_ids
        return list(dict.fromkeys([*self.config.eos_token_ids, *of_tokenizer]))

    def tokenizer_facts(self) -> dict[str, Any] | None:
        """Return the kind of tokenizer, its size and its special tokens; None without one."""
        if self.tokenizer is None:
            return None
        return {
            "kind": tokenizer_kind(self.files),
            "vocab_size": self.tokenizer.vocab_size,
            "specials": dict(self.tokenizer.specials),
            "bos_token_id": self.tokenizer.bos_token_id,
            "eos_token_ids": list(self.tokenizer.eos_token_ids),
            "num_special_tokens": len(self.tokenizer.special_ids),
        }

    def _kv_bytes(self, dtype: DType) -> int:
        layer = KVCacheSpec(
            num_kv_heads=self.config.num_kv_heads, head_dim=self.config.head_dim, dtype=dtype
        )
        num_layers = self.config.num_layers - len(self.config.linear_layers)
        return layer.bytes_per_token * num_layers * TOKENS_OF_A_ROW


def read_tokenizer(files: ModelFiles) -> Tokenizer | None:
    """Return the tokenizer of an open model, None where it has none."""
    if files.gguf_metadata is not None:
        has_one = "tokenizer.ggml.model" in files.gguf_metadata
        return gguf_tokenizer(dict(files.gguf_metadata)) if has_one else None
    if files.tokenizer_json is None:
        return None
    config = files.tokenizer_config
    return hf_tokenizer(files.tokenizer_json, None if config is None else dict(config))


def tokenizer_kind(files: ModelFiles) -> str:
    """Return what a tokenizer was made from."""
    if files.gguf_metadata is None:
        return "tokenizer.json"
    model = files.gguf_metadata["tokenizer.ggml.model"]
    pre = files.gguf_metadata.get("tokenizer.ggml.pre")
    return f"GGUF {model}" + (f", pre-tokenizer {pre}" if pre else "")
