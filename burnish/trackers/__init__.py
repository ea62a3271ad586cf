"""Trackers: a run's metrics and samples on their way to W&B, SwanLab, MLflow, Trackio, ClearML and TensorBoard.

A tracker reads the files that the run writes anyway, in a process of its own. So a run never waits for one: it
says only up to which update there is something to read. What can't be sent now stays in those files, and is sent later.
"""
