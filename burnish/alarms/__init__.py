"""Alarms: what has moved in a run's metrics that should not. Thresholds, one two-sample test, and reward dominance."""
