"""The sidecar: separate processes that make batches in shared memory.

See `docs/protocol.md` and `docs/rooms/sidecar.md`.
"""
