"""Batches over a socket: the client's half, and the wire; see `docs/arrow-stream.md`."""
