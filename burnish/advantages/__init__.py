"""Rewards to training signals: pure functions of tensors. Only here does anything look across samples."""
