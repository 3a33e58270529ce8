"""Fuzzing of every parser of ours, by ``make fuzz``: harnesses in `targets`, first inputs in ``corpus``."""
