"""What is stored as a whole: partitions, row groups, the index, deleted rows, and snapshots of tables."""
