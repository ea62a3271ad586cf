"""Hostile inputs: what a careless or malicious user, or a broken disk, can do to a run; ``python -m tests.hostile``."""
