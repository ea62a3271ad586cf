"""Who teaches: options of a frozen network that a student learns from."""

from __future__ import annotations

from burnish.options import Guidance, Positive
from burnish.registry import options


@options
class Teacher:
    """A frozen network. It reads the embeddings of the run's own text encoders, so its own must be the same."""

    path: str | None = None
    """Directory of its pipeline, of the family of model.path; null is the run's own untrained model."""
    lora: str | None = None
    """Directory of an adapter for it, as diffusers' load_lora_weights reads one; null adds none."""
    guidance_scale: Guidance | None = None
    """Classifier-free guidance that it predicts with; null takes rollout.guidance_scale."""
    weight: Positive = 1.0
    """Share of its loss in the sum."""

    @property
    def is_start(self) -> bool:
        """Whether it is the run's own untrained model."""
        return self.path is None and self.lora is None
