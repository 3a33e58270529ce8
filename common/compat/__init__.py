"""Petastorm's names, Spark, and Ray Data."""
