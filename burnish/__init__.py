"""Burnish: reinforcement-learning post-training for models that draw and models that see."""

__version__ = "0.1.0"
