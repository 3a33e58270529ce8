"""The public `Pipeline` value, its verbs, and its iterators."""

from .pipeline import Pipeline, mix

__all__ = ["Pipeline", "mix"]
