"""What the install built, told by the first command: pip shows nothing of a build that succeeds."""

import hashlib
from contextlib import suppress
from pathlib import Path

import click

import pyvt
from pyvt import envs

RECORD = Path(pyvt.__file__).parent / "backends" / "build_info.json"


def tell_build() -> None:
    """Write a line for each backend on stderr, once a user and install.

    A checkout tells nothing: its record is that of the last build, not of an install.
    """
    if RECORD.parents[2].name not in ("site-packages", "dist-packages") or not RECORD.is_file():
        return
    digest = hashlib.sha256(str(RECORD).encode() + RECORD.read_bytes()).hexdigest()[:16]
    mark = Path(envs.PYVT_HOME.get()).expanduser() / "told" / digest
    if mark.exists():
        return
    # Where nothing can be written, it is told again.
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    from pyvt import backends

    for name in backends.BACKENDS:
        click.echo(f"pyvt: backend {name}: {backends.build_note(name)}", err=True)
