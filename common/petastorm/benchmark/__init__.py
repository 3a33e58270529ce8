"""Measuring how fast a dataset is read."""
