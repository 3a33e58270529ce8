"""Maps the folders at the repository root to ``parquetry.*``, and adds compiled libraries where possible.

The compiled core is built if there is a C++ compiler, unless ``PARQUETRY_NATIVE=0``; without it, numpy does its work.
The op's libraries, one per TensorFlow, come from the folder in ``PARQUETRY_OPS`` (`make dist`). Otherwise the op is
compiled here if the build can import TensorFlow (``--no-build-isolation``), or else by ``python -m
parquetry.tf_plugin.build`` or on first use. A wheel with libraries is tagged for its platform but for any Python:
neither the core nor the op uses Python's ABI. A wheel without libraries is pure.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

FOLDERS = ("common", "tf_plugin", "torch_plugin")
REPOSITORY = "https://github.com/parquetry/parquetry"


def packages() -> list[str]:
    """Returns the package itself and every package of the three folders, under their import names."""
    found = ["parquetry"]
    for folder in FOLDERS:
        found.append(f"parquetry.{folder}")
        found += [f"parquetry.{folder}.{name}" for name in find_packages(folder)]
    return [*found, "parquetry.tf_plugin.kernels"]  # C++ sources, compiled on the user's machine


def long_description() -> str:
    """Returns the README with absolute links, for pages outside the repository."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/blob/main/", text)


class BuildWithLibraries(build_py):
    """Copies the modules, then adds the libraries."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or self.dry_run:
            return
        self.put_op()
        self.put_core()

    def put_op(self) -> None:
        """Installs the op's libraries: prebuilt ones, or one compiled for this environment's TensorFlow."""
        folder = Path(self.build_lib).resolve() / "parquetry" / "tf_plugin"
        given = os.environ.get("PARQUETRY_OPS")
        fitting = list(Path(given).glob("_parquetry_ops-*.so")) if given else []
        if not given and importlib.util.find_spec("tensorflow") is not None:
            fitting = self.compiled("tf_plugin", folder, "the TensorFlow op", "it will be compiled at first use")
        self.put(folder, fitting)

    def put_core(self) -> None:
        """Builds the library of the compiled core, unless it is disabled."""
        folder = Path(self.build_lib).resolve() / "parquetry" / "common" / "base" / "native" / "built"
        fitting: list[Path] = []
        if os.environ.get("PARQUETRY_NATIVE") != "0":
            fitting = self.compiled("common.base.native", folder, "the compiled core", "numpy will do its work")
        self.put(folder, fitting)

    def compiled(self, package: str, folder: Path, what: str, otherwise: str) -> list[Path]:
        """Builds a package's library into a folder, if that is possible here."""
        path = os.pathsep.join([str(Path(self.build_lib).resolve()), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        # In a separate process: an installer should not import TensorFlow.
        command = [sys.executable, "-m", f"parquetry.{package}.build", str(folder)]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            self.warn(f"{what} was not built now; {otherwise}")
            return []
        return [Path(result.stdout.splitlines()[-1])]

    def put(self, folder: Path, fitting: list[Path]) -> None:
        """Puts the matching libraries into a package folder, and removes those of earlier builds from other sources."""
        for path in [*folder.glob("*.lock"), *folder.glob("_parquetry_*.so")]:
            if path not in fitting:
                path.unlink()
        for path in fitting:
            if path.parent != folder:
                shutil.copy2(path, folder)


class WheelOfPlatform(bdist_wheel):
    """A wheel for any Python, tied to a platform if it contains a library."""

    def run(self) -> None:
        self.run_command("build")
        built = Path(self.get_finalized_command("build").build_lib)
        if list(built.glob("parquetry/**/_parquetry_*.so")):
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the setuptools tag without Python's version and ABI."""
        return "py3", "none", super().get_tag()[2]


setup(
    packages=packages(),
    package_dir={"parquetry": "parquetry", **{f"parquetry.{folder}": folder for folder in FOLDERS}},
    package_data={
        "": ["py.typed"],
        "parquetry.common.base.native": ["*.cc", "*.h"],
        "parquetry.tf_plugin": ["*.so"],
        "parquetry.tf_plugin.kernels": ["*.cc", "*.h"],
    },
    cmdclass={"bdist_wheel": WheelOfPlatform, "build_py": BuildWithLibraries},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
