"""Stages: the values that verbs create. Most modules hold one verb."""
