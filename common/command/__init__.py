"""The command ``parquetry``: it only shows what functions of other rooms return as values."""
