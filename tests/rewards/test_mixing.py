"""Several rewards become one: weights by label and update, caps, gates, products, own functions, and normalisation."""

import statistics
from collections.abc import Mapping
from typing import Any

import pytest

from burnish.rewards.base import Score
from burnish.rewards.mixing import MixingOptions, mix
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.asked import flow_reward, reward
from tests.support.scoring import chosen, evaluated, function, written
from tests.support.tiny_run import TinyRun

PLACES = [{"data_source": "web", "label": "ocr"}, {"data_source": "web"}, {"label": "count"}]


def records(columns: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """One for each value of the columns, which rewards of those names give."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [PLACES[i % 3] | {"prompt": f"No. {i}", "values": row} for i, row in enumerate(rows)]


def rewards(columns: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: function("as_written", arguments={"column": name}) | options.get(name, {})
        for name in dict.fromkeys([*columns, *options])
    }


@pytest.fixture
def mixed(files):
    """What is kept of samples with these values, and the reward of each."""

    def evaluate(columns, options, **mixing):
        return evaluated(files, rewards(columns, options), records(columns), mixing=mixing)[0]

    return evaluate


def totals(rows) -> list[float | None]:
    return [None if row["reward"] is None else pytest.approx(row["reward"]) for row in rows]


def test_the_reward_is_the_weighted_sum_and_missing_where_one_that_counts_is(mixed):
    columns = {"one": ({"score": 1.0, "note": "472"}, 0.25, None, 0.0),
               "two": (-2.0, {"score": 4.0, "x": 0.5}, 1.0, 0.0),
               "seen": (9.0, None, 9.0, {"score": 1.0, "note": "dark"})}  # fmt: skip
    rows = mixed(columns, {"one": {"weight": 2.0}, "two": {"weight": -0.5}, "seen": {"weight": 0.0}})
    assert totals(rows) == [3.0, -1.5, None, 0.0]
    assert rows[1]["components"] == {"one": 0.25, "two": 4.0, "seen": None, "two_x": 0.5}
    assert [rows[0]["note"], rows[3]["note"]] == ["472", "dark"]
    rows = mixed({"one": (3e38, -3e38, 1.0)}, {"one": {"weight": 2.0}})
    assert totals(rows) == [None, None, 2.0]
    assert "the reward is 6e+38" in rows[0]["note"]


def test_labels_choose_who_judges_and_count_before_sources(mixed):
    own = {"number": {"labels": ["ocr"]}, "word": {"labels": ["count"]}}
    rows = mixed({"form": (1, 1, 1), "number": (2, 2, 2), "word": (4, 4, None)}, own)
    assert totals(rows) == [3.0, 1.0, None]
    assert rows[0]["components"] == {"form": 1.0, "number": 2.0, "word": None}
    by = {"one": {"weight": 3.0, "weight_by": {"ocr": 0.5, "web": 2.0}}}
    assert totals(mixed({"one": (1, 1, 1)}, by)) == [0.5, 2.0, 3.0]


def test_a_cap_and_a_gate_change_what_counts_and_not_what_is_logged(mixed):
    right = {"cap": 2.0, "gate": {"by": "form", "otherwise": -1.0}}
    rows = mixed({"form": (1.0, 0.0, None), "right": (5.0, None, 1.0)}, {"form": {"weight": 0.0}, "right": right})
    assert totals(rows) == [2.0, -1.0, None]
    assert [row["components"]["right"] for row in rows] == [5.0, None, 1.0]
    # where the form is not asked for, the gate stands open
    own = {"form": {"weight": 0.0, "labels": ["count"]}, "right": right}
    assert totals(mixed({"form": (0.0, 0.0, 0.0), "right": (1.0, 1.0, 1.0)}, own)) == [1.0, 1.0, -1.0]


def test_a_product_and_a_function_of_the_user_say_what_they_can_not_count(mixed, tmp_path):
    columns = {"one": (0.5, 0.0, -1.0), "two": (4.0, 1.0, 1.0), "idle": (7, 7, 7)}
    rows = mixed(columns, {"two": {"weight": 0.5}, "idle": {"weight": 0.0}}, rule="product")
    assert totals(rows) == [1.0, 0.0, None]
    assert "one" in rows[2]["note"]
    file = tmp_path / "own.py"
    file.write_text(
        "def own(values, weights, prompt):\n"
        "    if prompt.text == 'No. 1':\n        raise ValueError('no')\n"
        "    if values['one'] == 9:\n        return float('inf')\n"
        "    return None if values['one'] is None else values['one'] * weights['two'] + values['two_x']\n"
    )
    further = {"one": (2.0, 1.0, None, 9.0), "two": ({"score": 1.0, "x": 0.25},) * 4}
    rows = mixed(further, {"two": {"weight": 3.0}}, rule=f"{file}:own")
    assert totals(rows) == [6.25, None, None, None]
    assert ("ValueError: no" in rows[1]["note"], "own.py:own gave inf" in rows[3]["note"]) == (True, True)


def test_parts_of_a_sum_count_as_their_reward_does_and_of_several_holds_the_strongest():
    def made(**options):
        return reward("function", path="tests.support.named_rewards:step_values", **options)

    rewards = {
        "one": made(weight=2.0, hold={"below": 0.0, "factor": 3.0}), "shut": made(gate={"by": "one", "least": 9.0}),
        "two": made(weight=-0.5, hold={"above": 2.0}), "seen": made(weight=0.0, hold={"above": 2.0, "factor": 2.0}),
    }  # fmt: skip
    asked, both = [Prompt(text="?")], [Score(3.0, steps=((4, 4.0), (1, 8.0)), tokens=(0.5, 1.0))]
    scores = {"one": [Score(-1.0, steps=((9, 1.0), (4, 0.5)), tokens=(1.0, 2.0))]}
    scores |= dict.fromkeys(("two", "shut", "seen"), both)
    found = mix(rewards, scores, asked)
    assert (found.steps, found.tokens) == ([((1, -4.0), (4, -1.0), (9, 2.0))], [(1.75, 3.5)])
    assert (found.reward.tolist(), found.kl_factor) == ([-3.5], [10.0])
    assert mix(rewards, scores, asked, MixingOptions(rule="product")).steps == [()]
    read = {"ocr": [Score(None, "no"), Score(0.5, numbers={"exact": 0.0})]}
    found = mix({"ocr": flow_reward("ocr")}, read, asked * 2)
    assert (found.names, found.missing.tolist()) == (("ocr", "ocr_exact"), [True, False])
    assert found.components.nan_to_num(9).tolist() == [[9, 9], [0.5, 0]]
    with pytest.raises(UserError, match="one_x"):
        mix({"one": made(), "one_x": made()}, {"one": [Score(1.0, numbers={"x": 2.0})], "one_x": both}, asked)


def scores(run) -> list[tuple[float, float]]:
    return [(row["critic/score/min"], row["critic/score/max"]) for row in run.metrics[1:]]


@pytest.fixture
def trained(files):
    """A run of two prompts at each update, in the order of the values."""

    def train(columns, options, *words):
        data = [written(files, records(columns)), "data.shuffle=false", "validation.before=false"]
        mixing = ["algorithm=grpo", *chosen(rewards(columns, options)), *data, *words]
        return TinyRun(files, "language", "llama", *mixing, name="mixing")

    return train


def test_a_schedule_moves_the_weight_with_the_update(trained):
    columns = {"one": (1.0, 3.0) * 3, "two": (1.0,) * 6}
    run = trained(columns, {"one": {"weight": 2.0, "schedule": {"points": [[1, 0.0], [3, 1.0]]}}})
    run.train()
    assert scores(run) == [(1.0, 1.0), (2.0, 4.0), (3.0, 7.0)]


def test_running_normalisation_is_that_of_all_samples_so_far(trained):
    values = (1.0, 2.0, 4.0, 9.0, 5.0, 3.0)
    columns = {"one": values, "flat": (3.0,) * 4 + (3.0, 3.1)}
    run = trained(columns, {"flat": {"weight": 2.0}}, "mixing.normalise.floor=0.5")
    run.train()

    def normalised(column, first):
        known = [value for value in column[: first + 2] for _ in range(4)]
        std = max(statistics.stdev(known), 0.5)
        return [(value - statistics.mean(known)) / std for value in column[first : first + 2]]

    expected = []
    for first in (0, 2, 4):
        both = [
            one + 2 * flat
            for one, flat in zip(normalised(values, first), normalised(columns["flat"], first), strict=True)
        ]
        expected.append(pytest.approx((min(both), max(both)), abs=1e-5))
    assert scores(run) == expected
    assert run.metrics[-1]["critic/one/running_std"] == pytest.approx(statistics.stdev(values * 4), rel=1e-5)
