"""Memory forecasts: the run's own code on tensors that have shapes and no values, with its live bytes counted."""
