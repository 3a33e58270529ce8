"""The command line tool ``parquetry``. It only displays values that functions of other packages return."""
