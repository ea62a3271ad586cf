"""Options of a reward service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from burnish.options import Count, NonNegative, Positive, Seconds
from burnish.registry import options


@options
class ServiceOptions:
    """What a reward service takes, and how much at once."""

    batch_size: Count = 64
    """Samples that are scored together, at most."""
    window: NonNegative = 0.01
    """Seconds that a request waits for others to be scored with; 0 takes what is there."""
    queue: Count = 1024
    """Samples that may wait or be scored; a request beyond that is answered with 503 and Retry-After."""
    max_body_mb: Positive = 64.0
    """Size of a request."""
    max_pixels: Annotated[int, Field(ge=1, le=10**9)] = 2**24
    """Pixels of an image, or of a frame."""
    read_timeout: Seconds = 30.0
    """Seconds for a client to send its request."""
    max_connections: Count = 1024
    """Connections at once; further ones are answered with 503."""
