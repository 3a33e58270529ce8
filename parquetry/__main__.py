"""``python -m parquetry`` and the program ``parquetry``: the command, which is in the extra ``cli``."""

import sys

from parquetry.common.base.errors import needs_framework


def main() -> None:
    """Runs the command with the arguments of this process. Exits with status 4 if the extra is not installed."""
    try:
        with needs_framework("the command parquetry", "typer", extra="cli"):
            from parquetry.common.apps.command.app import main as run
    except ModuleNotFoundError as error:
        print(f"parquetry: {error}", file=sys.stderr)
        sys.exit(4)  # `NOT_INSTALLED`
    run()


if __name__ == "__main__":
    main()
