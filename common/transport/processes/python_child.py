"""`python_command`: how every Python child is started, so that it imports only what is installed.

``python -m`` puts the working directory first, where any file called like a module of the standard library is imported
instead of it. Python 3.11 has ``-P`` against that; this way works with every Python, also with another machine's. Where
a child needs the paths of its parent, for user functions, they travel in its request.
"""

from __future__ import annotations

import sys

_RUN = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.argv.pop(0); "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module with this Python, isolated as far as this process is."""
    isolation = {"-I": sys.flags.isolated, "-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    flags = [flag for flag, is_set in isolation.items() if is_set]
    return [sys.executable or "python3", *flags, "-c", _RUN, module, *arguments]
