"""Maps the folders at the repository root to ``parquetry.*``, and puts compiled libraries in where that is possible.

The compiled core is built where there is a C++ compiler, unless ``PARQUETRY_NATIVE=0``; without it, numpy does its
work. Libraries of the op come from the folder that ``PARQUETRY_OPS`` names (`make dist`), one for each TensorFlow. Else
one is compiled if TensorFlow can be imported by the build (``--no-build-isolation``); else ``python -m
parquetry.tf_plugin.build`` compiles it, or its first use does. A wheel with libraries is tagged for its platform, but
for any Python: neither the core nor the op uses anything of Python's ABI. A wheel without is pure.
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
    """The package itself, and every package of the three folders under its import name."""
    found = ["parquetry"]
    for folder in FOLDERS:
        found.append(f"parquetry.{folder}")
        found += [f"parquetry.{folder}.{name}" for name in find_packages(folder)]
    return [*found, "parquetry.tf_plugin.kernels"]  # C++ sources, compiled where the package is installed


def long_description() -> str:
    """The README with absolute links, for pages that do not stand beside the repository's files."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/blob/main/", text)


class BuildWithLibraries(build_py):
    """Copies the modules, then puts the libraries beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or self.dry_run:
            return
        self.put_op()
        self.put_core()

    def put_op(self) -> None:
        """The libraries of the op: given, or compiled for the TensorFlow of this environment."""
        folder = Path(self.build_lib).resolve() / "parquetry" / "tf_plugin"
        given = os.environ.get("PARQUETRY_OPS")
        fitting = list(Path(given).glob("_parquetry_ops-*.so")) if given else []
        if not given and importlib.util.find_spec("tensorflow") is not None:
            fitting = self.compiled("tf_plugin", folder, "the TensorFlow op", "it will be compiled at first use")
        self.put(folder, fitting)

    def put_core(self) -> None:
        """The library of the compiled core, unless it is not wanted."""
        folder = Path(self.build_lib).resolve() / "parquetry" / "common" / "native" / "built"
        fitting: list[Path] = []
        if os.environ.get("PARQUETRY_NATIVE") != "0":
            fitting = self.compiled("common.native", folder, "the compiled core", "numpy will do its work")
        self.put(folder, fitting)

    def compiled(self, package: str, folder: Path, what: str, otherwise: str) -> list[Path]:
        """The library that a package builds into a folder, if that can be done here."""
        path = os.pathsep.join([str(Path(self.build_lib).resolve()), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        # In a process of its own: TensorFlow is not for the inside of an installer.
        command = [sys.executable, "-m", f"parquetry.{package}.build", str(folder)]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            self.warn(f"{what} was not built now; {otherwise}")
            return []
        return [Path(result.stdout.splitlines()[-1])]

    def put(self, folder: Path, fitting: list[Path]) -> None:
        """Leaves the libraries that fit in a folder of the package, and none of other sources by earlier builds."""
        for path in [*folder.glob("*.lock"), *folder.glob("_parquetry_*.so")]:
            if path not in fitting:
                path.unlink()
        for path in fitting:
            if path.parent != folder:
                shutil.copy2(path, folder)


class WheelOfPlatform(bdist_wheel):
    """A wheel for any Python, and for one platform if it holds a library."""

    def run(self) -> None:
        self.run_command("build")
        built = Path(self.get_finalized_command("build").build_lib)
        if list(built.glob("parquetry/**/_parquetry_*.so")):
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """As setuptools finds it, without Python's version and ABI."""
        return "py3", "none", super().get_tag()[2]


setup(
    packages=packages(),
    package_dir={"parquetry": "parquetry", **{f"parquetry.{folder}": folder for folder in FOLDERS}},
    package_data={
        "": ["py.typed"],
        "parquetry.common.native": ["*.cc"],
        "parquetry.tf_plugin": ["*.so"],
        "parquetry.tf_plugin.kernels": ["*.cc", "*.h"],
    },
    cmdclass={"bdist_wheel": WheelOfPlatform, "build_py": BuildWithLibraries},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
