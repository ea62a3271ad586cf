"""Judging the policy on held-out prompts, always from the same random numbers, so that samples can be compared."""

from __future__ import annotations

from pathlib import Path

from burnish.algorithms.base import Metrics
from burnish.tasks import Assembly, FlowAssembly, LanguageAssembly
from burnish.tasks.flow import evaluate as pictures
from burnish.tasks.language import evaluate as answers

__all__ = ["judge"]


def judge(assembly: Assembly, target: Path | None, *, n: int, guidance: float | None = None) -> Metrics:
    """Sample for held-out prompts, score, and keep samples and verdicts of the first ones in ``target``, if any.

    Several ranks share the prompts out, and all of them get the metrics; the first one keeps samples.

    Args:
        assembly: with the weights to judge; on several ranks they have to be gathered.
        target: folder for samples and verdicts.
        n: samples of a prompt.
        guidance: classifier-free guidance of a model that draws; None takes the run's.
    """
    target = target if assembly.ranks.rank == 0 else None
    if isinstance(assembly, LanguageAssembly):
        assert guidance is None, "a language model is not guided"
        return answers.judge(assembly, target, n=n)
    assert isinstance(assembly, FlowAssembly)
    return pictures.judge(assembly, target, n=n, guidance=guidance)
