"""Everything that is decided before the first row is decoded, as values."""
