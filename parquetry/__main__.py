"""``python -m parquetry``: the command, as ``parquetry`` runs it."""

from parquetry.common.apps.command.app import main

if __name__ == "__main__":
    main()
