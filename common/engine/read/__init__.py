"""Reads encoded columns from storage, through the cache."""
