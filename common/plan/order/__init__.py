"""The order of items: keyed permutations, streams, blocks, and positions."""
