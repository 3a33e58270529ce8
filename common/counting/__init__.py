"""What an iteration does, counted: who waits for whom, and where the time goes."""
