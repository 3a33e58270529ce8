"""`absolute` makes a path absolute, and says so if the working directory is gone."""

from __future__ import annotations

import os

from ..errors import DatasetError


def absolute(path: str) -> str:
    """Returns the absolute path that a path names; ``~`` stands for the user's directory.

    Raises:
        DatasetError: the path is relative, and the working directory was removed.
    """
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError as error:
        try:
            gone = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        except OSError:  # a system without /proc
            gone = os.environ.get("PWD", "unknown")
        raise DatasetError(
            f"path '{path}': it is relative, and the working directory of this process, '{gone}', no longer exists. "
            "Pass an absolute path, or change to a directory that exists: os.chdir(...)."
        ) from error
