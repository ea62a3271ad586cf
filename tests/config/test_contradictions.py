"""Options that contradict one another: mixing rewards, teachers, gradients of rewards, choosing among samples."""

import pytest

from burnish.config.load import load
from burnish.utils.errors import ConfigError

BORDER = "rewards.border_darkness.weight=0.5"
REFUSED = {
    # how rewards become one
    "an unknown gate": (["rewards.ocr.gate.by=format"], ["rewards.ocr.gate.by is format", "border_darkness"]),
    "a gate of its own": (["rewards.ocr.gate.by=ocr"], ["label of another reward"]),
    "a cap that never counts": (["rewards.border_darkness.cap=1"], ["border_darkness.cap", "weight is 0"]),
    "points that fall": (["rewards.ocr.schedule={points: [[5, 0.1], [5, 1.0]]}"], ["rewards.ocr.schedule", "rise"]),
    "a schedule of nothing": (["rewards.ocr.schedule={points: [[5, 0.0]]}"], ["no factor above 0"]),
    "a schedule without updates": (
        ["rewards.ocr.schedule={points: []}"], ["rewards.ocr.schedule.points is []", "at least 1 values"]
    ),
    "half a point": (["rewards.ocr.schedule.points=[[1, 0.5], [2]]"], ["points.1 is [2]", "a list of 2 values"]),
    "no point": (["rewards.ocr.schedule.points=[[a], [{}]]"], ["rewards.ocr.schedule.points"]),
    "a schedule for given pictures": (
        ["algorithm=sft", "rewards.ocr.schedule={points: [[5, 1.0]]}"], ["rewards.ocr.schedule", "sft samples nothing"],
    ),
    "a product of one": (["mixing.rule=product"], ["mixing.rule", "ocr is the only reward"]),
    "a negative power": (["mixing.rule=product", "rewards.border_darkness.weight=-1"], ["border_darkness", "negative"]),
    "two rules": (["mixing.rule=product", "mixing.path=own.py:mix", BORDER], ["path names a function in place"]),
    "a normalised product": (["mixing.rule=product", "mixing.normalise={}", BORDER], ["normalise", "rule product"]),
    "normalised twice": (
        ["mixing.normalise={}", "algorithm.advantage_aggregation=gdpo", BORDER], ["mixing.normalise", "itself"],
    ),
    "normalised and filtered": (
        ["mixing.normalise={}", "rollout.filter_groups={}"], ["mixing.normalise", "rollout.filter_groups"],
    ),
    "normalised pictures of the user": (["algorithm=sft", "mixing.normalise={}"], ["mixing.normalise", "sft"]),
    "gradients of a product": (
        ["algorithm=draft", "mixing.rule=product", BORDER], ["draft follows gradients", "leave these out"],
    ),
    "a floor of nothing": (["mixing.normalise.floor=0"], ["mixing.normalise.floor is 0"]),
    "a rule that is none": (["mixing.rule=sums"], ["mixing.rule is sums", "did you mean sum?"]),
    # who teaches, what is followed, and what is kept
    "a reward without gradients": (
        ["algorithm=draft", "rewards.ocr.weight=1"],
        ["rewards.ocr has weight 1", "rewards.ocr.weight=0", "aesthetic, border_darkness, clip"],
    ),
    "a teacher that is the student": (
        ["algorithm=distill", "algorithm.teachers=[{guidance_scale: 1}]"],
        ["algorithm.teachers[0]", "the student itself", "another guidance_scale"],
    ),
    "an unknown option of a teacher": (
        ["algorithm=distill", "algorithm.teachers=[{guidence_scale: 3}]"],
        ["guidence_scale", "no such option"],
    ),
    "more steps with gradients than there are": (
        ["algorithm=draft", "algorithm.last_steps=9"],
        ["window", "num_inference_steps is 8"],
    ),
    "as many candidates as samples": (["rollout.candidates.n=12"], ["rollout.candidates.n is 12", "all would be kept"]),
    "no cheaper candidates": (
        ["rollout.candidates={n: 24, num_inference_steps: 8}"],
        ["rollout.candidates.num_inference_steps is 8", "no fewer"],
    ),
    "candidates of a tree": (["algorithm=branch_grpo", "rollout.candidates.n=24"], ["rollout.candidates", "trees"]),
    "cheap candidates from one noise": (
        ["algorithm=dance_grpo", "rollout.candidates={n: 24, num_inference_steps: 4}"],
        ["rollout.candidates.num_inference_steps is 4", "the same noise"],
    ),
    "filtering groups of one": (
        ["algorithm=distill", "rollout.n=1", "rollout.filter_groups={}"],
        ["rollout.filter_groups", "rollout.n is 1"],
    ),
    "one reward by itself": (["algorithm.advantage_aggregation=each"], ["ocr is the only reward with a weight"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_with_a_way_out(case):
    overrides, words = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        load("quickstart", overrides)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["rewards.ocr.gate={by: border_darkness, least: 0.1}", "rewards.ocr.cap=0.9"],
        ["rewards.ocr.weight_by={default: 0.5}", "mixing.normalise={}"],
        ["mixing.rule=product", BORDER, "rewards.ocr.schedule={points: [[1, 0.0], [9, 1.0]], between: hold}"],
        ["rewards.ocr.weight=0", "rewards.ocr.weight_by={default: 1.0}"],
        ["algorithm=distill"],
        ["algorithm=draft"],
        ["rollout.candidates={n: 24, num_inference_steps: 4}", "rollout.filter_groups.max_num_gen_batches=3"],
        ["algorithm.advantage_aggregation=gdpo"],
        ["algorithm.advantage_aggregation=each", "rewards.border_darkness.weight=-0.5"],
    ],
)
def test_what_is_accepted(overrides):
    load("quickstart", overrides)


def test_an_expression_of_the_users_needs_a_process_that_can_be_ended():
    own = ["rewards.format={form: pattern, pattern: '(a|a)*b'}"]
    load("vlm_quickstart", own)
    with pytest.raises(ConfigError, match=r"rewards\.format\.pattern is matched .* leave scoring\.processes out"):
        load("vlm_quickstart", [*own, "scoring.processes=0"])
