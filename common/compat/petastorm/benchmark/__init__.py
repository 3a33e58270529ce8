"""Measures how fast a dataset is read."""
