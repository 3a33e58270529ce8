"""Maps the folders at the repository root to ``parquetry.*``, and builds the TensorFlow op where that is possible.

The op library is compiled into the package when TensorFlow can be imported by the build (``--no-build-isolation``).
In an isolated build it cannot; then ``python -m parquetry.tf_plugin.build`` compiles it, or the first use does.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = ("common", "tf_plugin", "torch_plugin")


def packages() -> list[str]:
    """The package itself, and every package of the three folders under its import name."""
    found = ["parquetry"]
    for folder in FOLDERS:
        found.append(f"parquetry.{folder}")
        found += [f"parquetry.{folder}.{name}" for name in find_packages(folder)]
    return [*found, "parquetry.tf_plugin.kernels"]  # C++ sources, compiled where the package is installed


class BuildWithOp(build_py):
    """Copies the modules, then compiles the op library beside them if TensorFlow is importable."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or self.dry_run or importlib.util.find_spec("tensorflow") is None:
            return
        library = Path(self.build_lib).resolve()
        command = [sys.executable, "-m", "parquetry.tf_plugin.build", str(library / "parquetry" / "tf_plugin")]
        path = os.pathsep.join([str(library), *filter(None, sys.path)])
        # In a process of its own: TensorFlow is not for the inside of an installer.
        result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}, check=False)
        if result.returncode != 0:
            self.warn("the TensorFlow op was not built now; it will be compiled at first use")


setup(
    packages=packages(),
    package_dir={"parquetry": "parquetry", **{f"parquetry.{folder}": folder for folder in FOLDERS}},
    package_data={"": ["py.typed"], "parquetry.tf_plugin": ["*.so"], "parquetry.tf_plugin.kernels": ["*.cc", "*.h"]},
    cmdclass={"build_py": BuildWithOp},
)
