"""One file for each kind of work on columns."""
