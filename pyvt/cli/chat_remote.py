"""The partner of ``pyvt chat --url``: a server of OpenAI's API, of whatever make."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyvt.cli.remote import RemoteServer
from pyvt.cli.session import Answer, Message


class Remote:
    """A model behind a server."""

    def __init__(self, server: RemoteServer, model: str, settings: Mapping[str, Any]) -> None:
        self.server = server
        self.name = f"{model} at {server.url}"
        self._body = {"model": model, "stream": True, **settings}

    def stream(self, messages: list[Message], write: Callable[[str], None]) -> Answer:
        """Stream an answer into ``write``; Ctrl-C ends it with the finish reason ``abort``."""
        return asyncio.run(self._stream(messages, write))

    async def _stream(self, messages: list[Message], write: Callable[[str], None]) -> Answer:
        answer = Answer()
        reading = asyncio.ensure_future(self._read(messages, answer, write))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, reading.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await reading
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        if reading.cancelled():
            answer.finish_reason = "abort"
        return answer

    async def _read(
        self, messages: list[Message], answer: Answer, write: Callable[[str], None]
    ) -> None:
        body = {**self._body, "messages": messages}
        async for event in self.server.events("/chat/completions", body):
            for choice in event.get("choices") or ():
                text = (choice.get("delta") or {}).get("content") or ""
                answer.text += text
                if text:
                    write(text)
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def open_remote(url: str, key: str, model: str | None, settings: Mapping[str, Any]) -> Remote:
    """Return the partner behind a URL; without a name of a model it is the server's first.

    Raises:
        ServerError: nobody answers, or no model is served.
    """
    server = RemoteServer(url, key)
    return Remote(server, model or asyncio.run(server.model()), settings)
