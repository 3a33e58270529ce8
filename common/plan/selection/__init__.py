"""Selects the items to read: applies predicates, prunes by statistics, and finds window starts."""
