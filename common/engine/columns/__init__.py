"""Columns in memory: gathered, decoded, and handed over."""
