"""What was asked for: one file for each verb, as values."""
