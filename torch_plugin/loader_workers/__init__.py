"""How batches get from loader workers to the training process: who makes them, where their values lie, what is sent."""
