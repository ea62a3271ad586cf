"""Advantages and optimality: reference numbers, and what must hold for any rewards."""

import pytest
import torch

from burnish.advantages.groups import (
    depthwise_advantages,
    group_advantages,
    group_statistics,
    normalise_each,
    optimality,
)
from burnish.advantages.rewards import Rewards
from burnish.algorithms.base import advantages_of
from burnish.algorithms.flow.lagged import DECAYS, Lag
from burnish.registry import lookup
from burnish.types.rollout import Scores
from tests.conformance import Case, case, cases, labels


def advantages(reward, group, *, missing=None, **options) -> torch.Tensor:
    reward = torch.as_tensor(reward)
    missing = torch.zeros(len(reward), dtype=torch.bool) if missing is None else missing
    return group_advantages(reward, torch.as_tensor(group), missing, **options)


def by_name(name: str, reward, group, **options) -> torch.Tensor:
    """What the algorithm of that name makes of rewards, [B]."""
    reward, group = torch.as_tensor(reward), torch.as_tensor(group)
    missing = torch.zeros(len(reward), dtype=torch.bool)
    scores = Scores(
        reward=reward, missing=missing, components=reward[:, None], names=("r",), weights=(1.0,),
        notes=[""] * len(reward),
    )  # fmt: skip
    made = lookup("flow algorithm", name)(**options)
    return advantages_of(made, Rewards.of(scores, group, 1)).advantage[:, 0]


def options_of(case: Case) -> dict:
    given = case.inputs
    if not given["norm"]:
        return {"advantage_std": "none"}
    scale = "global" if given["global_std"] else "group"
    return {"advantage_std": scale, "advantage_unbiased": True, "advantage_eps": given.get("epsilon", 1e-4)}


@pytest.mark.parametrize("c", cases("credit", "advantage/flow_grpo/T", "advantage/nft_group"), ids=lambda c: c.id)
def test_advantages_of_verl_omni(c):
    """Its std is over rewards repeated for every trained step; ours never depends on how many are trained."""
    reward, expected = (
        c.inputs["rewards"],
        c.expected.get("advantages", c.expected.get("advantages_first_column")),
    )
    options = options_of(c)
    if options["advantage_std"] == "global":
        repeated = reward[:, None].expand(-1, c.inputs.get("T", 1))
        expected = expected * (repeated.std() + options["advantage_eps"]) / (reward.std() + options["advantage_eps"])
    name = "diffusion_nft" if "nft" in c.id else "flow_grpo"
    c.close(by_name(name, reward, labels(c.inputs["uid"]), **options), expected)


def test_advantages_of_flow_grpo():
    c = case("credit", "advantage/flow_grpo_global_std")
    got = by_name("flow_grpo", c.inputs["rewards"], labels(c.inputs["prompts"]), advantage_std="global")
    c.close(got, c.expected["advantages"])


def test_advantages_of_dance_grpo():
    c = case("credit", "advantage/dance_group")
    group = torch.arange(len(c.inputs["rewards"])) // c.inputs["group_size"]
    c.close(by_name("dance_grpo", c.inputs["rewards"], group), c.expected["advantages"])


def test_advantages_of_flow_factory():
    """It divides by the larger of std and 1e-6, which is adding nothing wherever a group has a spread."""
    c = case("credit", "advantage/flow_factory_sum_group_std")
    weights = c.inputs["weights"]
    reward = sum(w * torch.tensor(c.inputs[f"reward_{name}"]) for name, w in weights.items())
    scale = "global" if c.inputs["global_std"] else "group"
    got = by_name("flow_grpo", reward, c.inputs["group_ids"], advantage_std=scale, advantage_eps=1e-12)
    c.close(got, c.expected["advantages"])


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
    got = by_name("dance_grpo", c.inputs["rewards"], labels(c.inputs["uid"]), advantage_std="none")
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
    c.close([Lag(decay=name).weight(step) for step in c.inputs["steps"]], c.expected[name])
    c = case("credit", "schedule/nft_old_policy_decay")
    kind = list(DECAYS).index(name)
    c.close([Lag(decay=name).weight(step) for step in c.inputs["steps"]], c.expected[f"type{kind}"])


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


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_advantages_know_nothing_of_how_many_steps_are_trained(steps):
    """verl-omni's grow with the number of trained steps; its value at one step is required at any."""
    one = next(c for c in cases("credit", "advantage/flow_grpo/T1/norm1/global1"))
    many = next(c for c in cases("credit", f"advantage/flow_grpo/T{steps}/norm1/global1"))
    got = by_name("flow_grpo", many.inputs["rewards"], labels(many.inputs["uid"]), **options_of(many))
    one.close(got, one.expected["advantages_first_column"])


def tree(c: Case) -> torch.Tensor:
    """Nodes of a binary tree of depth 2 at each depth, and a root that all share: [4, 3]."""
    assert c.inputs["tree"] == "binary depth 2"
    return torch.tensor([[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]])


def test_advantages_in_a_tree():
    c = case("credit", "advantage/branch_depthwise")
    reward = torch.tensor(c.inputs["leaf_rewards"])
    got = depthwise_advantages(reward, tree(c), torch.zeros(4).long(), torch.zeros(4).bool())
    assert (got[:, 0] == 0).all()
    c.close(got[::2, 1], c.expected["depth1"])
    assert torch.equal(got[::2, 1], got[1::2, 1])
    c.close(got[:, 2], c.expected["depth2"])


def test_trees_know_nothing_of_each_other():
    c = case("credit", "advantage/branch_depthwise")
    reward, node, none = torch.tensor(c.inputs["leaf_rewards"]), tree(c), torch.zeros(8).bool()
    alone = depthwise_advantages(reward, node, torch.zeros(4).long(), none[:4])
    both = depthwise_advantages(
        torch.cat([3 + 10 * reward, reward]), torch.cat([node + 10, node]), torch.tensor([5] * 4 + [2] * 4), none
    )
    torch.testing.assert_close(both[4:], alone)
    torch.testing.assert_close(both[:4], alone)
    order = torch.tensor([3, 0, 2, 1])
    torch.testing.assert_close(
        depthwise_advantages(reward[order], node[order], none[:4].long(), none[:4]), alone[order]
    )


def test_a_missing_leaf_is_as_if_it_were_not_there():
    reward, node = torch.tensor([0.1, torch.nan, 0.4, 0.8]), torch.tensor([[1, 3], [1, 4], [2, 5], [2, 6]])
    missing, group = torch.tensor([False, True, False, False]), torch.zeros(4).long()
    got, rest = depthwise_advantages(reward, node, group, missing), ~missing
    torch.testing.assert_close(got[rest], depthwise_advantages(reward[rest], node[rest], group[rest], missing[rest]))
    assert (got[missing] == 0).all()


def test_without_shared_steps_a_tree_is_a_group():
    reward, group, missing = batch(3)
    node = torch.arange(len(reward))[:, None].expand(-1, 2)
    got = depthwise_advantages(reward, node, group, missing, eps=1e-8)
    expected = advantages(reward, group, missing=missing, unbiased=True, eps=1e-8)
    torch.testing.assert_close(got, expected[:, None].expand(-1, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("whiten", [True, False])
def test_no_reward_rules_by_its_unit(whiten):
    components = torch.stack([batch(seed)[0] for seed in range(3)], 1)
    _, group, missing = batch(0)
    weights, options = [1.0, 0.5, 2.0], {"whiten": whiten, "eps": 1e-12}
    got = normalise_each(components, weights, group, missing, **options)
    rescaled = normalise_each(components * torch.tensor([100.0, 1.0, 0.01]) + 7, weights, group, missing, **options)
    torch.testing.assert_close(got, rescaled, rtol=1e-3, atol=1e-4)
    assert (got[missing] == 0).all()
    if whiten:
        torch.testing.assert_close(got[~missing].mean(), torch.tensor(0.0), rtol=0, atol=1e-6)
        torch.testing.assert_close(got[~missing].std(correction=0), torch.tensor(1.0))
    else:
        parts = [advantages(components[:, i], group, missing=missing, eps=1e-12) for i in range(3)]
        torch.testing.assert_close(got, sum(w * part for w, part in zip(weights, parts, strict=True)))


def test_a_missing_component_adds_nothing():
    components, group = torch.tensor([[1.0, 5.0], [0.0, torch.nan], [0.5, 1.0]]), torch.zeros(3).long()
    none = torch.zeros(3).bool()
    got = normalise_each(components, [1.0, 1.0], group, none)
    second = advantages([5.0, 0.0, 1.0], group, missing=torch.tensor([False, True, False]))
    torch.testing.assert_close(got, advantages(components[:, 0], group) + second)
    assert got.isfinite().all()


def test_no_samples_no_advantages():
    none, ids = torch.zeros(0), torch.zeros(0).long()
    assert group_advantages(none, ids, none.bool()).shape == (0,)
    assert normalise_each(torch.zeros(0, 2), [1.0, 1.0], ids, none.bool(), whiten=True).shape == (0,)
    assert depthwise_advantages(none, ids[:, None].expand(0, 3), ids, none.bool()).shape == (0, 3)


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_lowest_rewards_of_a_group_may_be_left_out_of_its_statistics(unbiased):
    """As MixGRPO's trimmed_ratio: a quarter of four is one; all four are compared with the mean of the other three."""
    reward = [5.0, 0.0, 1.0, 3.0, 7.0, 8.0, 9.0, -6.0]
    got = advantages(reward, [0, 0, 0, 0, 1, 1, 1, 1], trimmed_ratio=0.25, unbiased=unbiased, eps=1e-8)
    rest = torch.tensor([[5.0, 1.0, 3.0], [7.0, 8.0, 9.0]])
    mean, std = rest.mean(1, keepdim=True), rest.std(1, keepdim=True, correction=int(unbiased))
    torch.testing.assert_close(got, ((torch.tensor(reward).view(2, 4) - mean) / std).flatten())


def test_trimming_counts_the_rewards_that_are_there():
    missing = torch.tensor([False, False, True, False, False])
    got = advantages([4.0, 0.0, -9.0, 2.0, 0.0], [0] * 5, missing=missing, trimmed_ratio=0.5, scale="none")
    torch.testing.assert_close(got, torch.tensor([1.0, -3.0, 0.0, -1.0, -3.0]))


def test_where_only_trimmed_rewards_differ_the_whole_group_says_how_far():
    """MixGRPO's own code divides by 1e-8 here."""
    reward = [1.0, 0.0, 1.0, 1.0]
    got = advantages(reward, [0] * 4, trimmed_ratio=0.25, eps=1e-8)
    torch.testing.assert_close(got, (torch.tensor(reward) - 1) / torch.tensor(reward).std(correction=0))
    assert advantages([2.0] * 4, [0] * 4, trimmed_ratio=0.25).eq(0).all()


@pytest.mark.parametrize("aggregation", ["sum", "each"])
def test_an_algorithm_trims(aggregation):
    reward = [5.0, 0.0, 1.0, 3.0]
    got = by_name("mix_grpo", reward, [0] * 4, advantage_trimmed_ratio=0.25, advantage_aggregation=aggregation)
    rest = torch.tensor([5.0, 1.0, 3.0])
    torch.testing.assert_close(got, (torch.tensor(reward) - 3) / rest.std(correction=0), rtol=1e-3, atol=0)
