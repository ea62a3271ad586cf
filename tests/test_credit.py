"""Advantages and optimality: reference numbers, and what must hold for any rewards."""

import pytest
import torch

from burnish.algorithms.diffusion_nft import DECAYS
from burnish.credit import group_advantages, group_statistics, optimality
from tests.conformance import Case, case, cases


def labels(names) -> torch.Tensor:
    known = list(dict.fromkeys(names))
    return torch.tensor([known.index(name) for name in names])


def advantages(reward, group, *, missing=None, **options) -> torch.Tensor:
    reward = torch.as_tensor(reward)
    missing = torch.zeros(len(reward), dtype=torch.bool) if missing is None else missing
    return group_advantages(reward, torch.as_tensor(group), missing, **options)


def options_of(case: Case) -> dict:
    given = case.inputs
    if not given["norm"]:
        return {"scale": "none"}
    scale = "global" if given["global_std"] else "group"
    return {"scale": scale, "unbiased": True, "eps": given.get("epsilon", 1e-4)}


@pytest.mark.parametrize("c", cases("credit", "advantage/flow_grpo/T", "advantage/nft_group"), ids=lambda c: c.id)
def test_advantages_of_verl_omni(c):
    """Its std is over rewards repeated for every trained step; ours never depends on how many are trained."""
    reward, expected = (
        c.inputs["rewards"],
        c.expected.get("advantages", c.expected.get("advantages_first_column")),
    )
    options = options_of(c)
    if options["scale"] == "global":
        repeated = reward[:, None].expand(-1, c.inputs.get("T", 1))
        expected = expected * (repeated.std() + options["eps"]) / (reward.std() + options["eps"])
    c.close(advantages(reward, labels(c.inputs["uid"]), **options), expected)


def test_advantages_of_flow_grpo():
    c = case("credit", "advantage/flow_grpo_global_std")
    got = advantages(c.inputs["rewards"], labels(c.inputs["prompts"]), scale="global")
    c.close(got, c.expected["advantages"])


def test_advantages_of_dance_grpo():
    c = case("credit", "advantage/dance_group")
    group = torch.arange(len(c.inputs["rewards"])) // c.inputs["group_size"]
    c.close(advantages(c.inputs["rewards"], group, unbiased=True, eps=1e-8), c.expected["advantages"])


def test_advantages_of_flow_factory():
    """It divides by the larger of std and 1e-6, which is adding nothing wherever a group has a spread."""
    c = case("credit", "advantage/flow_factory_sum_group_std")
    weights = c.inputs["weights"]
    reward = sum(w * torch.tensor(c.inputs[f"reward_{name}"]) for name, w in weights.items())
    scale = "global" if c.inputs["global_std"] else "group"
    c.close(advantages(reward, c.inputs["group_ids"], scale=scale, eps=1e-12), c.expected["advantages"])


@pytest.mark.parametrize("scale", ["group", "global", "none"])
def test_equal_rewards_give_exactly_nothing(scale):
    c = case("credit", "advantage/zero_std_groups/global1")
    got = advantages(c.inputs["rewards"], labels(c.inputs["uid"]), scale=scale, unbiased=True)
    c.close(got, c.expected["advantages_first_column"])
    assert (got == 0).all()


def test_equal_rewards_are_found_by_comparing_them():
    c = case("credit", "edge/zero_std_ratio_float_residue")
    for size in c.inputs["group_sizes"]:
        reward = torch.tensor(c.inputs["group_values"], dtype=torch.float32).repeat_interleave(size)
        group = torch.arange(len(reward)) // size
        found = group_statistics(reward, group, torch.zeros(len(reward), dtype=torch.bool))
        assert found.constant.float().mean() == c.expected["correct_value"]


@pytest.mark.parametrize("scale", ["group", "global", "none"])
@pytest.mark.parametrize("unbiased", [True, False])
def test_one_sample_gives_zero(scale, unbiased):
    c = case("credit", "edge/single_value_global_std")
    got = advantages(c.inputs["rewards"], [0], scale=scale, unbiased=unbiased)
    assert got.tolist() == [c.expected["correct_value"]]


def test_scale_is_what_was_asked_for():
    c = case("credit", "edge/dance_grpo_ignores_flags")
    got = advantages(c.inputs["rewards"], labels(c.inputs["uid"]), scale="none")
    torch.testing.assert_close(got, c.expected["flow_grpo"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", cases("credit", "nft/reward_prob/"), ids=lambda c: c.id)
def test_optimality(c):
    got = optimality(c.inputs["advantages"], c.inputs["adv_clip_max"], c.inputs["adv_mode"])
    c.close(got, c.expected["reward_prob"])


@pytest.mark.parametrize("mode", ["continuous", "positive_only", "negative_only", "binary", "one_only"])
def test_optimality_rises_with_the_advantage_and_is_a_probability(mode):
    got = optimality(torch.linspace(-9, 9, 101), 3.0, mode)
    assert got.min() >= 0
    assert got.max() <= 1
    assert (got.diff() >= 0).all()
    assert got[-1] > got[0]


@pytest.mark.parametrize("name", ["copy", "linear_to_0_5", "delayed_linear_to_0_999"])
def test_decay_of_the_old_policy(name):
    c = case("credit", "nft/old_policy_decay")
    c.close([DECAYS[name](step) for step in c.inputs["steps"]], c.expected[name])
    c = case("credit", "schedule/nft_old_policy_decay")
    kind = list(DECAYS).index(name)
    c.close([DECAYS[name](step) for step in c.inputs["steps"]], c.expected[f"type{kind}"])


def batch(seed: int, size: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    reward = torch.randn(size, generator=g)
    group = torch.randint(7, (size,), generator=g)
    missing = torch.rand(size, generator=g) < 0.3
    return reward, group, missing


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", ["group", "global", "none"])
@pytest.mark.parametrize("unbiased", [True, False])
class TestAnyRewards:
    def test_a_missing_reward_is_as_if_the_sample_were_not_there(self, seed, scale, unbiased):
        reward, group, missing = batch(seed)
        # whatever stands in place of a missing reward must not be read
        spoiled = torch.where(missing, torch.nan if seed % 2 else 1e30, reward)
        whole = advantages(spoiled, group, missing=missing, scale=scale, unbiased=unbiased)
        rest = advantages(reward[~missing], group[~missing], scale=scale, unbiased=unbiased)
        torch.testing.assert_close(whole[~missing], rest, rtol=1e-6, atol=1e-7)
        assert (whole[missing] == 0).all()

    def test_order_and_names_of_groups_do_not_matter(self, seed, scale, unbiased):
        reward, group, missing = batch(seed)
        order = torch.randperm(len(reward), generator=torch.Generator().manual_seed(seed))
        renamed = torch.randperm(7, generator=torch.Generator().manual_seed(seed + 1))[group] * 1000 - 3
        kwargs = {"scale": scale, "unbiased": unbiased}
        there = advantages(reward, group, missing=missing, **kwargs)
        back = advantages(reward[order], renamed[order], missing=missing[order], **kwargs)
        torch.testing.assert_close(back, there[order], rtol=1e-6, atol=1e-6)

    def test_a_group_sums_to_nothing(self, seed, scale, unbiased):
        reward, group, missing = batch(seed)
        got = advantages(reward, group, missing=missing, scale=scale, unbiased=unbiased)
        sums = torch.zeros(7).index_add(0, group, got)
        torch.testing.assert_close(sums, torch.zeros(7), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_a_constant_added_to_a_prompt_changes_nothing(scale):
    reward, group, missing = batch(0)
    kwargs = {"missing": missing, "scale": scale}
    shifted = advantages(reward.double() + 10.0 * group, group, **kwargs)
    torch.testing.assert_close(shifted, advantages(reward, group, **kwargs), rtol=1e-5, atol=1e-6)


def test_all_rewards_missing():
    missing = torch.ones(4, dtype=torch.bool)
    for scale in ("group", "global", "none"):
        got = advantages(torch.full((4,), torch.nan), [0, 0, 1, 1], missing=missing, scale=scale)
        assert (got == 0).all()


def test_group_std_is_torch_std():
    reward = torch.tensor([1.0, 2.0, 4.0, 8.0])
    for unbiased in (True, False):
        found = group_statistics(reward, torch.zeros(4, dtype=torch.long), torch.zeros(4).bool(), unbiased=unbiased)
        torch.testing.assert_close(found.std[0], reward.double().std(correction=int(unbiased)))
