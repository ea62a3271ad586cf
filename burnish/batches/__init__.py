"""What credit makes of scored rollouts: denoising steps to learn from, or finished samples with a judgement."""

from burnish.batches.ends import Ends
from burnish.batches.levels import NoiseLevels
from burnish.batches.samples import ForwardTerms, JudgedSamples, groups_of, judge, take, without_prompts
from burnish.batches.steps import AnnotatedSteps, StepBatch, StepTerms

__all__ = [
    "AnnotatedSteps",
    "Ends",
    "ForwardTerms",
    "JudgedSamples",
    "NoiseLevels",
    "StepBatch",
    "StepTerms",
    "groups_of",
    "judge",
    "take",
    "without_prompts",
]
