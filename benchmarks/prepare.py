"""Writes a peer's own format, in that peer's environment: ``python -m benchmarks.prepare``.

Takes a contender's module and a data folder, and writes to a subfolder named after the module.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

from .catalog import Contender


def main() -> None:
    """Calls the module's ``prepare``."""
    module_name, folder = sys.argv[1], Path(sys.argv[2])
    module = importlib.import_module(f"benchmarks.contenders.{module_name}")
    target = peer_folder(folder, module_name)
    done = target / "complete"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    module.prepare(folder, target)
    done.touch()


def needs_preparing(contender: Contender, folder: Path) -> bool:
    """Whether the contender is installed but its own format is not written; imports no module, which would be slow."""
    if not contender.python.exists() or (peer_folder(folder, contender.module) / "complete").exists():
        return False
    source = (Path(__file__).parent / "contenders" / f"{contender.module}.py").read_text(encoding="utf-8")
    return "\ndef prepare(" in source


def peer_folder(folder: Path, module_name: str) -> Path:
    """Returns the folder of a peer's own format."""
    return folder / module_name


if __name__ == "__main__":
    main()
