"""Runs the engine in this process, in a sidecar, or on a server."""
