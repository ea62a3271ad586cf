"""How often sampling waits for the GPU, and how many bytes it sends, per denoising step and per token.

What an update may cost is asked of every run, in tests/support/pretend_runs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pretend_flow, pretend_language
from tests.support.pretend_runs import Outcome, train

pytestmark = pytest.mark.slow


def sampled(recipe: Path, given: list[str], *more: str) -> Outcome:
    names = [option.split("=")[0] for option in more]
    kept = [option for option in given if option.split("=")[0] not in names]
    return train(recipe, [*kept, "model.dtype=bfloat16", *more], device="cuda", updates=1)


def further(few: Outcome, many: Outcome, kind: str) -> float:
    """What a denoising step, or a token, adds."""
    return (many.gpu.count(kind, "gen") - few.gpu.count(kind, "gen")) / (many.asked - few.asked)


@pytest.mark.parametrize("name", ["flow_grpo told guidance", "branch_grpo"])
def test_a_denoising_step_waits_for_nothing(name: str, flow_folder: Path) -> None:
    recipe, given = pretend_flow.options(flow_folder, name)
    few, many = (sampled(recipe, given, f"rollout.num_inference_steps={steps}") for steps in (3, 6))
    assert many.asked > few.asked
    assert further(few, many, "sync") == 0, many.gpu.lines("sync", "gen")
    # the noise of 8 pictures, and where its rows lie
    assert further(few, many, "bytes to device") <= 4096, many.gpu.lines("bytes to device", "gen")


@pytest.mark.parametrize(
    ("name", "waits"),
    [("ppo warm", 1), ("grpo filters", 3)],  # how many rows have ended; and the last tokens, for stop texts
)
def test_a_token_waits_once(name: str, waits: int, language_folder: Path) -> None:
    recipe, given = pretend_language.options(language_folder, name)
    few, many = (
        sampled(recipe, given, f"rollout.max_new_tokens={count}", "rollout.batch_size=64") for count in (5, 25)
    )
    assert many.asked >= few.asked + 20
    # wherever rows have ended, those that are left move together
    assert further(few, many, "sync") <= waits + 0.5, many.gpu.lines("sync", "gen")
    assert further(few, many, "bytes to device") <= 1024, many.gpu.lines("bytes to device", "gen")
