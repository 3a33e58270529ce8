"""Jobs in order, blocks loaded ahead, and the threads that make batches."""
