"""Plans jobs in order, loads their blocks ahead of time, and makes batches in threads."""
