"""Runs the engine in this process, in a sidecar process, or on a server."""
