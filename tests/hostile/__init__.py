"""Hostile inputs: what a careless or malicious user, a broken disk or an impatient machine can do to a run.

``python -m tests.hostile`` tries all of them and prints how many were answered well; see ``tests/hostile/__main__.py``.
"""
