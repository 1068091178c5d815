"""Installs the clients that are tested, into ``.clients`` of the checkout, beside everything else.

    python -m tests.clients.install

Python's clients come from their own environment there, openai-node from npm where node is, the
browser from Debian's packages where this runs as root.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".clients"
PYTHON = FOLDER / "bin" / "python"
NODE = FOLDER / "node"
BROWSERS = ("chromium", "chromium-browser")
MISSING = "clients are not installed; make clients installs them"


def browser() -> str | None:
    """Return the path of Chromium, None where there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def _install_browser() -> None:
    if browser() is not None:
        return
    if shutil.which("apt-get") is not None and os.geteuid() == 0:
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if browser() is None:
        print("Chromium is not there: the page is not tested; apt-get install chromium")


def main() -> None:
    """Install what is missing; a second run has nothing to do."""
    _install_browser()
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
