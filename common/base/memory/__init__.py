"""Memory of batches and blocks, and views of Arrow buffers as arrays."""
