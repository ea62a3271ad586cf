"""Trackers: a run's metrics, samples and alarms in W&B, SwanLab, MLflow, Trackio, ClearML and TensorBoard.

Each tracker has a thread of its own with a bounded queue, so a run never waits for one. What could not be sent is in
the run's files and is sent when the run is started again.
"""
