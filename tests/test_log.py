"""The level of the log."""

import os
import subprocess
import sys
from pathlib import Path


def test_unknown_level_is_named_and_taken_as_warning(repo: Path) -> None:
    code = "from pyvt.log import get_logger; get_logger('pyvt.x').info('a'); print('done')"

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYVT_LOG_LEVEL": "loud"},
        cwd=repo,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "done\n"
    assert "PYVT_LOG_LEVEL=loud is unknown, taken as warning; known: critical" in done.stderr
