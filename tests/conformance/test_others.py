"""Cases of options and metrics that are no formula of their own."""

from dataclasses import replace

import pytest
import torch

from burnish.registry import lookup
from tests.conformance import case, cases
from tests.support.asked import reward, values
from tests.support.forward_batches import scored


class Old:
    optimizer_steps = 7
    decay: float | None = None

    def blend(self, name: str, decay: float, source: str = "policy") -> None:
        self.decay = decay


def test_metrics_of_the_old_policy():
    c = case("metrics", "metrics/old_policy")
    options = {"copy": {}, "ema": {"decay": "ema"}, "none": {"update_interval": 2}}
    for (moved, decay, kind), expected in zip(c.inputs["tuples"], c.expected["metrics"], strict=True):
        given = options[kind] | ({"ema": decay} if kind == "ema" else {})
        roles = Old()
        assert lookup("flow algorithm", "diffusion_nft")(old=given).after_update(roles, 7) == pytest.approx(expected)
        assert roles.decay == (decay if moved else None)


@pytest.mark.parametrize("c", cases("flow", "nft/select_timesteps"), ids=lambda c: c.id)
def test_as_many_noise_levels_of_the_schedule(c):
    """verl-omni draws the same ones at every update; ours depend on the update, and each row on its sample alone."""
    table, expected = c.inputs["train_timesteps"], c.expected["selected"]
    schedule = torch.cat([table[0], torch.zeros(1)])
    algorithm = lookup("flow algorithm", "diffusion_nft")(timestep_fraction=c.inputs["timestep_fraction"])
    samples = scored().select(range(len(table)))

    def drawn(update: int) -> torch.Tensor:
        given = replace(samples, update=update, trace=replace(samples.trace, schedule=schedule))
        return algorithm.compute_advantages(given)[0].time

    assert drawn(0).shape == expected.shape
    for row in drawn(0).tolist():
        assert len(set(row)) == len(row)
        assert set(row) <= set(table[0].tolist())
    assert torch.equal(drawn(3), drawn(3))
    assert len({tuple(drawn(update).flatten().tolist()) for update in range(20)}) > 5


def test_a_choice_stands_in_the_first_tag():
    c = case("rewards", "reward/choice")
    assert values(reward("exact"), *c.inputs["pairs"]) == c.expected["scores"]
