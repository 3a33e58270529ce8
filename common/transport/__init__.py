"""Where the engine runs: in this process, in a sidecar, or at a server."""
