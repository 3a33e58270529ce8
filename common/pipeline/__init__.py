"""The public value: what is wanted, its verbs, and its iterators."""

from .pipeline import Pipeline, mix

__all__ = ["Pipeline", "mix"]
