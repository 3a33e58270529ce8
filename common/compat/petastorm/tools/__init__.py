"""Tools for whole datasets, with Petastorm's names."""
