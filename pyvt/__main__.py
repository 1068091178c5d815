"""``python -m pyvt`` and the console script: the command line from its first import on.

A Ctrl-C while the command's own modules are imported, its first fifth of a second, ends the process
as one at any later time does. This module imports nothing that takes time.
"""

import os
import signal
import sys

EXIT_INTERRUPTED = 130


def _end_at_once(*_: object) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(EXIT_INTERRUPTED)


def run() -> None:
    """Run the command line and end the process."""
    # A shell that starts a command in the background has it ignore Ctrl-C.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, _end_at_once)
    from pyvt.cli.main import main

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main()
    if code == EXIT_INTERRUPTED:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End without waiting for a step that the engine's thread may be in the middle of."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
