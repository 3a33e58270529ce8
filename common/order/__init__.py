"""In which sequence items come: keyed permutations, streams, windows, and positions."""
