"""The tables of models: drawn or sampled, trained, exported and loaded again as their own classes compute."""

import sys
from pathlib import Path

import pytest

from tests.support.optional import seldom

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import generator_classes
import generator_row
import generator_table
import language_row
import language_table


@pytest.mark.parametrize("name", seldom(*(one.name for one in generator_table.ALL)))
def test_every_generator_is_as_it_has_to_be_or_refused(name, tmp_path):
    row = generator_table.measured(name, tmp_path)
    if row.refused.startswith("needs "):
        pytest.skip(row.refused)
    assert not row.faults


@pytest.mark.parametrize("name", seldom(*(one.name for one in language_table.LANGUAGE)))
def test_every_language_model_is_without_fault(name, tmp_path):
    row = language_table.measured(name, tmp_path)
    assert not row.faults
    assert not row.refused


def test_a_row_has_a_fault_where_a_figure_leaves_its_bound():
    good = {"latents": 0.0, "output": 1e-6, "same": 1e-6, "logprob": 3e-8, "lora": 2e-6, "full": 0.0}
    good |= {"runs": dict.fromkeys(generator_row.RUNS, ""), "name": "one", "pipeline": "One", "makes": "images"}
    for wrong, faults in (({}, []), ({"same": 2e-3}, ["sampler 0.002"]), ({"lora": float("nan")}, ["adapter nan"])):
        assert generator_row.Row(**good | wrong).faults == faults
    good = {"rows": "packed", "batch": 1e-6, "sampler": 2e-6, "greedy": "9/9", "shared": 0.0, "grpo": 5, "ppo": 5}
    for wrong, said in (({"batch": 0.1}, "0.1 nats"), ({"greedy": "8/9"}, "8 of 9"), ({"ppo": 4}, "4 of 5")):
        row = language_row.Row(**{"name": "one", "model": "OneForCausalLM", "reads": [], **good, **wrong})
        language_row.judge(row)
        assert [said in fault for fault in row.faults] == [True]
    found = generator_classes.groups({tiny.kind for tiny in generator_table.ALL})
    named = [name for group in found.values() for name in group]
    assert len(named) == len(set(named)) > 120, "every class of diffusers has one reason"
