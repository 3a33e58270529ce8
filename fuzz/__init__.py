"""Fuzzes every parser in the package with ``make fuzz``: harnesses in `targets`, seed inputs in ``corpus``."""
