"""Metrics that depend on the clock; all others are the same in every run of a configuration."""

TIME_COLUMNS = ("timing_s/", "timing_per_image_ms/", "timing_per_token_ms/", "perf/", "pipeline/idle_share/")


def is_time_column(name: str) -> bool:
    """Whether a metric is one of those."""
    return name.startswith(TIME_COLUMNS) or "/latency_s/" in name
