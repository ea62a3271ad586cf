"""Functions that were written for other libraries run as they are, and say by which form they are called."""

import numpy as np
import pytest

from burnish.registry import lookup
from burnish.rewards.given import Given
from burnish.rewards.judging import judge
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

PROMPT = Prompt(text="1 + 1?", answer="2")
GIVEN = Given(inputs={"response_ids": [[5, 6, 7], [5]]})
SEEN = []


def easyr1_batch(reward_inputs, format_weight=0.1):
    return [{"overall": (1 - format_weight) * (one["response"] == one["ground_truth"]), "accuracy": 1.0,
             "length": one["response_length"]} for one in reward_inputs]  # fmt: skip


def easyr1_single(reward_input):
    return {"overall": float(reward_input["response"] == reward_input["ground_truth"])}


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)


def trl(completions, prompts, **kwargs):
    SEEN.append(prompts)
    return [float(one == "2") for one in completions]


def flow_grpo(images, prompts, metadata):
    SEEN.append(prompts)
    return [float(len(prompt)) for prompt in prompts], {}


def own(responses, prompts, metadata):
    SEEN.append(prompts)
    return [1.0] * len(responses)


def of(function, kind="language reward"):
    return lookup(kind, "function")(path=f"{__name__}:{function}")


@pytest.mark.parametrize("name", ["easyr1_batch", "easyr1_single", "verl", "trl"])
def test_functions_of_others_score_responses(name, caplog):
    reward = of(name)
    for _ in range(2):
        reward.check([PROMPT])
    assert caplog.text.count("is called in the form of") == 1
    assert {"easyr1": "EasyR1", "verl": "verl", "trl": "TRL"}[name.partition("_")[0]] in caplog.text
    right, wrong = judge(reward, [Response("2"), Response("3")], [PROMPT] * 2, GIVEN)
    assert (right.value, wrong.value) == (0.9 if name == "easyr1_batch" else 1.0, 0.0)
    if name == "easyr1_batch":
        assert right.named == {"accuracy": 1.0, "length": 3.0}


def test_a_parameter_alone_does_not_change_what_prompts_are():
    picture = np.zeros((4, 4, 3), dtype=np.uint8)
    SEEN.clear()
    judge(of("flow_grpo", "flow reward"), [picture], [PROMPT])
    judge(of("own"), [Response("2")], [PROMPT])
    assert SEEN == [["1 + 1?"], [PROMPT]]


def test_what_no_form_fits_is_told_the_forms(tmp_path):
    (tmp_path / "mine.py").write_text("def score(everything):\n    return 1.0\n")
    with pytest.raises(UserError, match=r"reward_inputs.*completions"):
        lookup("language reward", "function")(path=f"{tmp_path}/mine.py:score").check([PROMPT])


@pytest.mark.parametrize(
    ("reward", "sample", "said"),
    [
        (("flow reward", "border_darkness"), Response("2"), "this is a text"),
        (("language reward", "exact"), np.zeros((4, 4, 3), dtype=np.uint8), "this is not a text"),
    ],
)
def test_a_sample_of_the_other_task_is_told(reward, sample, said):
    (verdict,) = judge(lookup(*reward)(), [sample], [PROMPT])
    assert (verdict.value, verdict.fault) == (None, "")
    assert said in verdict.note


def test_a_function_that_goes_to_another_folder_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef score(responses, prompts):\n    os.chdir('/')\n    return [1.0] * len(responses)\n"
    )
    reward = lookup("language reward", "function")(path="mine.py:score")
    for _ in range(2):
        assert [verdict.value for verdict in judge(reward, [Response("2")], [PROMPT])] == [1.0]
