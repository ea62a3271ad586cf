"""Options of samples that a run keeps as files."""

from __future__ import annotations

from burnish.options import Count, Positive
from burnish.registry import options


@options
class SaveOptions:
    """Keep training samples as files in the run's folder, with everything that is known of them."""

    every: Count = 10
    """Policy updates between those whose samples are kept, beginning with the first."""
    prompts: Count = 8
    """Prompts of such an update whose samples are kept, all samples of each."""
    most_mb: Positive = 2000.0
    """Size of the folder in megabytes from which on no more are kept."""


@options
class ValidationSaveOptions(SaveOptions):
    """Keep samples of validations as files in the run's folder, with everything that is known of them."""

    every: Count = 1
    """Validations after updates that this divides are kept, the one before training among them."""
    prompts: Count = 64
    """Prompts whose samples are kept, the first ones of the data, all samples of each."""
