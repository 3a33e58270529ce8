"""In which sequence items come: keyed permutations, streams, blocks, and positions."""
