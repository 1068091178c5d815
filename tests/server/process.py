"""Servers in processes of their own."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server.harness import PATIENCE_S


class Process:
    """``pyvt serve`` of a tiny model in a process of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        """Start it; returns once requests are taken."""
        command = [sys.executable, "-m", "pyvt", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--backend", "numpy", *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            # What it leaves behind is of its session.
            start_new_session=True,
        )
        self.lines: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith("try"):
                break
        (self.url,) = [line.split()[-1] for line in self.lines if line.startswith("url")]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stream(self, num_tokens: int = 120) -> Any:
        """Start a stream of many tokens; returns once the first chunk has come."""
        fields = {"prompt": "a", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
        reply = self.post(fields)
        reply.readline()
        return reply

    def post(self, fields: dict[str, Any]) -> Any:
        """Ask for a completion; returns the response, which is unread."""
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(fields).encode(),
            {"content-type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=PATIENCE_S)

    def signal(self, number: int) -> None:
        """Send a signal; returns once it was told of."""
        assert self.process.stderr is not None
        self.process.send_signal(number)
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith("stopping"):
                break

    def end(self) -> int:
        """Wait for the end; returns the exit code. All lines are there then."""
        code = self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.lines += [line.rstrip() for line in stderr]
        return code

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


Launch = Callable[..., Process]
