"""The sidecar: separate processes that make batches in shared memory; see `docs/protocol.md` and
`docs/rooms/transport.md`.
"""
