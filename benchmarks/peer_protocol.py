"""What peers have in common: the protocol of ``pyvt/testing/bench_engine.py``.

Uses nothing of pyvt, so that the Python of a peer need not have it.
"""

import json
import sys
from pathlib import Path
from typing import Any, Protocol


class Peer(Protocol):
    """An engine that is measured; times are in seconds."""

    def prefill_alone(self, num_tokens: int) -> float:
        """Run a prompt with nothing beside it."""

    def decode(self, context: int, num_steps: int, num_sequences: int = 1) -> dict[str, Any]:
        """Return the time of prompts of ``context`` tokens as ``prefill_s``, of steps as
        ``seconds``.
        """


def serve(peer: Peer, name: str, load_s: float) -> None:
    """Say who is there, then answer line by line until the input ends."""
    print(json.dumps({"name": name, "load_s": load_s}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(peer, json.loads(line))), flush=True)


def _answer(peer: Peer, ask: dict[str, Any]) -> dict[str, Any]:
    match ask["do"]:
        case "prefill":
            return {"seconds": [peer.prefill_alone(ask["tokens"])]}
        case "decode":
            return peer.decode(ask["context"], ask["steps"])
        case "batch":
            return peer.decode(ask["context"], ask["steps"], ask["sequences"])
        case "memory":
            return _memory_use()
    raise ValueError(f"unknown request {ask['do']!r}")


def _memory_use() -> dict[str, int]:
    """Return the resident and the peak bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {
        "resident_bytes": int(fields["VmRSS"].split()[0]) * 1024,
        "peak_bytes": int(fields["VmHWM"].split()[0]) * 1024,
    }
