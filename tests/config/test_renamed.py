"""Options of earlier versions that a config.yaml still has."""

import yaml

from burnish.config import load, to_dict
from burnish.config.derived import renamed


def test_the_solver_of_mix_grpo_is_that_of_rollouts(tmp_path):
    old = to_dict(load("quickstart", ["algorithm=mix_grpo"]))
    del old["rollout"]["solver"], old["validation"]["solver"]
    for solver, rollouts, validations in (("euler", "euler", None), ("dpm2", "dpm2m", "euler")):
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(old | {"algorithm": old["algorithm"] | {"solver": solver}}))
        found = load(str(file))
        assert (found.rollout.solver, found.validation.solver) == (rollouts, validations)
        assert found.rollout.num_inference_steps == old["rollout"]["num_inference_steps"]


def test_nothing_else_is_touched():
    for tree in (
        {}, {"algorithm": "mix_grpo"}, {"algorithm": {"name": "mine.py:Mine", "solver": "dpm2"}},
        {"algorithm": {"name": "mix_grpo", "solver": "rk4"}}, {"algorithm": {"name": "mix_grpo", "solver": "dpm2"},
                                                               "rollout": 3},
    ):  # fmt: skip
        assert renamed(tree) is tree
    given = {"algorithm": {"name": "mix_grpo", "solver": "dpm2"}, "rollout": {"solver": "heun"},
             "validation": {"solver": None}}  # fmt: skip
    assert renamed(given) == {
        "algorithm": {"name": "mix_grpo"}, "rollout": {"solver": "heun"}, "validation": {"solver": None},
    }  # fmt: skip
