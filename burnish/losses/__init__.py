"""Losses as functions of tensors. They return one value per term; sums and divisions happen once, elsewhere."""
