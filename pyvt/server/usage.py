"""What a request cost, counted once for whole and streamed answers alike."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyvt.outputs import RequestOutput
from pyvt.server.answer.collector import Answer


@dataclass(slots=True)
class Usage:
    """Tokens of a request, or of several that one answer is made of.

    Every sampled token counts: reasoning, the one that ended the text, tool calls, and what a stop
    string hid. A prompt counts once, however many answers it has.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_reasoning_tokens: int = 0

    def add(self, output: RequestOutput, answers: Iterable[Answer]) -> None:
        """Add a finished request and its answers."""
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_cached_tokens += output.metrics.num_cached_tokens
        for answer in answers:
            self.num_completion_tokens += answer.num_tokens
            self.num_reasoning_tokens += answer.num_reasoning_tokens

    def openai(self) -> dict[str, Any]:
        """Return OpenAI's object of chats and completions."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens},
        }
