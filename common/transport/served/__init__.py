"""Batches over a socket: the client and the wire format; see `docs/arrow-stream.md`."""
