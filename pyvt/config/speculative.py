"""Settings of speculative decoding: who drafts tokens, and how many."""

from dataclasses import dataclass, field
from typing import Literal

from pyvt.errors import ConfigError

MTP_METHOD = "mtp"
METHODS = ("ngram", MTP_METHOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Settings of speculative decoding; off where nobody drafts."""

    speculation: Literal["ngram", "mtp"] | None = field(
        default=None,
        metadata={
            "help": "who drafts tokens, which one step then verifies; ngram: what followed the "
            "last tokens earlier in the text; mtp: a head of the model's own, where it has one. "
            "Tokens are the same as without",
            "choices": METHODS,
        },
    )
    num_speculative_tokens: int = field(
        default=4, metadata={"help": "most drafts of a request in a step, 1 to 32"}
    )
    prompt_lookup_min: int = field(
        default=2, metadata={"help": "fewest last tokens that must have occurred before"}
    )
    prompt_lookup_max: int = field(
        default=4, metadata={"help": "most last tokens that are looked for, the longest first"}
    )

    def __post_init__(self) -> None:
        if self.speculation is not None and self.speculation not in METHODS:
            raise self._error(
                "speculation", f"none or one of {', '.join(METHODS)}", self.speculation
            )
        for name, high in (
            ("num_speculative_tokens", 32),
            ("prompt_lookup_min", 64),
            ("prompt_lookup_max", 64),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
                raise self._error(name, f"an integer, 1 to {high}", value)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            expected = f"at most prompt_lookup_max={self.prompt_lookup_max}"
            raise self._error("prompt_lookup_min", expected, self.prompt_lookup_min)

    @property
    def num_lookahead_tokens(self) -> int:
        """Tokens behind a sampled one whose KV a model's head writes while it drafts."""
        return self.num_speculative_tokens - 1 if self.speculation == MTP_METHOD else 0

    @staticmethod
    def _error(name: str, expected: str, got: object) -> ConfigError:
        return ConfigError(
            f"[config] speculative.{name}: expected {expected}, got {got!r}",
            field=f"speculative.{name}",
        )
