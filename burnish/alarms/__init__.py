"""Alarms of a run: what has moved, by how much, since when, and what it looks like."""
