"""Which items are wanted: predicates, pruning by statistics, and window starts."""
