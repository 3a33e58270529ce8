"""``python -m parquetry.common.server``: the server that a trainer starts for itself."""

import sys

from .server_process import serve_trainer

if __name__ == "__main__":
    sys.exit(serve_trainer())
