"""Counts what an iteration does: who waits for whom, and where the time goes."""
