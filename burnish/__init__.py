"""Burnish: reinforcement-learning post-training for diffusion and flow generators and vision-language models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.api import Run, load, train
    from burnish.registry import register

__all__ = ["Run", "__version__", "load", "register", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Nothing is imported before it is asked for."""
    if name == "register":
        from burnish.registry import register

        return register
    if name in __all__:
        from burnish import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
