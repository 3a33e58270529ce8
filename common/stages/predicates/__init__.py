"""What you can ask of a row: expressions, tuples, and conditions on one column."""
