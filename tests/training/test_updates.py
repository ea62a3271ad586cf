"""What must hold of an update: how it is cut into pieces changes nothing, and what is not a number is not learned."""

import pytest

from burnish.training.trainer import length_metrics, signal_metrics, step_metrics
from tests.golden.runs import HALVES
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

CUT = {
    "generators": ["trainer.micro_batch_size=8", "trainer.micro_batch_size=3"],
    "language": ["trainer.micro_batch_tokens=4096", "trainer.micro_batch_tokens=30"],
}
NAMES = [
    ("generators", "grpo_guard kl"), ("language", "ppo warm"), ("language", "grpo entropy"),
    *seldom(
        ("generators", "diffusion_nft"), ("generators", "flow_grpo kl"), ("generators", "flow_grpo cps"),
        ("language", "grpo kl"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("half", "name"), NAMES)
def test_micro_batches_change_nothing_but_rounding(half, name, files):
    model, options = HALVES[half][name]
    whole, parts = (
        TinyRun(files, half, model, f"algorithm={name.split()[0]}", *options, "optimizer.eps=1e-3", cut, name="cut")
        for cut in CUT[half]
    )
    found = []
    for run in (whole, parts):
        run.train()
        found.append(run.metrics)
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert other[key] == (value and pytest.approx(value, rel=2e-2, abs=2e-4)), key


def test_metrics_of_a_step_are_means_extremes_and_shares_of_ranks():
    sums = {"sum actor/ratio_mean": 6, "count actor/ratio_mean": 4, "sum actor/ratio_square": 2, "sum none": 0,
            "count actor/ratio_square": 4, "count none": 0, "extreme 0 actor/ratio_max": 2, "report seen": 7,
            "extreme 1 actor/ratio_max": 3, "extreme 2 actor/ratio_max": float("-inf")}  # fmt: skip
    assert step_metrics(sums) == {"actor/ratio_mean": 1.5, "actor/ratio_std": 0.5, "actor/ratio_max": 3, "seen": 7}
    assert list(length_metrics([6, 1, 1, 1, 5], 2).values()) == [6, 8, 2, 7, 7, 7]
    power = "variance_proxy/proxy2_total_power"
    assert list(signal_metrics({f"count {power}": 5, f"sum {power}": 45}, 1).values()) == [1, 2]


HUGE = """
def huge(samples, prompts):
    return [1e38 * (i % 2) * (prompt.answer == "1") for i, prompt in enumerate(prompts)]
"""


def test_steps_that_are_not_finite_are_skipped_and_several_end_the_run(files):
    """Those of every second prompt."""
    (files / "huge.py").write_text(HUGE)
    huge = "rewards.huge={name: function, path: '{files}/huge.py:huge'}"
    given = ["algorithm=grpo", "algorithm.advantage_std=none", "rewards.odd=null", huge, "trainer.shuffle=false"]
    given += ["data.shuffle=false", "data.train_max_samples=2", "trainer.max_skipped_updates=1"]
    run = TinyRun(files, "language", "llama", *given, name="skipped")
    run.train()
    assert [row["actor/skipped_updates"] for row in run.metrics[1:]] == [1.0] * 3
    run = TinyRun(files, "language", "llama", *given, "trainer.mini_batch_size=8", name="skipped")
    assert "2 optimizer steps in a row" in run.train(status=2).message
    (files / "unlabelled.jsonl").write_text('{"prompt": "a", "steps": ["b"], "labels": [null]}\n' * 4)
    path = "data.train_files={files}/unlabelled.jsonl"
    run = TinyRun(files, "reward_models", "llama", "algorithm=process_reward", path, name="unlabelled")
    assert "no training signal" in run.train(status=2).message
