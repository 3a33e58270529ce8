"""Processes of ours: how each is started, and how it ends when a part of it fails."""
