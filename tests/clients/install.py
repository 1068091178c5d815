"""Installs the clients that are tested, into ``.clients`` of the checkout, beside everything else.

    python -m tests.clients.install

Python's clients come from their own environment there, openai-node from npm where node is.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".clients"
PYTHON = FOLDER / "bin" / "python"
NODE = FOLDER / "node"
MISSING = "clients are not installed; make clients installs them"


def main() -> None:
    """Install what is missing; a second run has nothing to do."""
    wanted = (HERE / "requirements.txt").read_text()
    mark = FOLDER / "installed.txt"
    if not mark.is_file() or mark.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True)
        mark.write_text(wanted)
    if shutil.which("npm") is None:
        print("npm is not there: openai-node is left out")
        return
    NODE.mkdir(exist_ok=True)
    shutil.copy(HERE / "package.json", NODE)
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    if subprocess.run(command, cwd=NODE, check=False).returncode:
        print("npm could not install openai-node: it is left out")


if __name__ == "__main__":
    main()
