"""The README's Python, block after block in one process, as a reader would type it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_python_of_the_readme_runs(repo: Path, tmp_path: Path, smollm2_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (repo / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    model = tmp_path / "home" / "models" / "smollm2-135m" / smollm2_path.name
    model.parent.mkdir(parents=True)
    model.symlink_to(smollm2_path)
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))

    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYVT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    assert '"name"' in done.stdout
