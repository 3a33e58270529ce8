"""Tools over whole datasets by Petastorm's names."""
