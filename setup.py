"""Maps the folders at the repository root to the packages ``parquetry.common``, ``.tf_plugin`` and ``.torch_plugin``."""

from setuptools import find_packages, setup

FOLDERS = ("common", "tf_plugin", "torch_plugin")


def packages() -> list[str]:
    """Every package of the three folders under its import name."""
    found = []
    for folder in FOLDERS:
        found.append(f"parquetry.{folder}")
        found += [f"parquetry.{folder}.{name}" for name in find_packages(folder)]
    return found


setup(
    packages=packages(),
    package_dir={f"parquetry.{folder}": folder for folder in FOLDERS},
    package_data={"parquetry.tf_plugin": ["kernels/*.cc", "kernels/*.h", "*.so"], "parquetry.common": ["py.typed"]},
)
