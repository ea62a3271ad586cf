"""Advantages: published numbers, closed forms, and what must hold for any rewards."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from burnish.metrics import reward_metrics
from burnish.registry import lookup
from burnish.rl.advantages import (
    Rewards,
    depthwise_advantages,
    group_advantages,
    group_statistics,
    normalise_each,
    optimality,
)
from burnish.rl.algorithm import advantages_of, call
from burnish.rl.rules import group_steps, optimal_baseline, pass_at_k
from burnish.types.rollout import Scores
from tests.conformance import Case, case, cases, labels

NAN = float("nan")


def advantages(reward, group, *, missing=None, **options) -> torch.Tensor:
    reward = torch.as_tensor(reward)
    missing = torch.zeros(len(reward), dtype=torch.bool) if missing is None else missing
    return group_advantages(reward, torch.as_tensor(group), missing, **options)


def by_name(name: str, reward, group, **options) -> torch.Tensor:
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
    reward, expected = (c.inputs["rewards"], c.expected.get("advantages", c.expected.get("advantages_first_column")))
    options = options_of(c)
    if options["advantage_std"] == "global":
        repeated = reward[:, None].expand(-1, c.inputs.get("T", 1))
        expected = expected * (repeated.std() + options["advantage_eps"]) / (reward.std() + options["advantage_eps"])
    name = "diffusion_nft" if "nft" in c.id else "flow_grpo"
    c.close(by_name(name, reward, labels(c.inputs["uid"]), **options), expected)


def test_advantages_of_the_authors():
    """Flow-Factory divides by the larger of std and 1e-6, which is adding nothing wherever a group has a spread."""
    c = case("credit", "advantage/flow_grpo_global_std")
    got = by_name("flow_grpo", c.inputs["rewards"], labels(c.inputs["prompts"]), advantage_std="global")
    c.close(got, c.expected["advantages"])
    c = case("credit", "advantage/dance_group")
    group = torch.arange(len(c.inputs["rewards"])) // c.inputs["group_size"]
    c.close(by_name("dance_grpo", c.inputs["rewards"], group), c.expected["advantages"])
    c = case("credit", "advantage/flow_factory_sum_group_std")
    weights = c.inputs["weights"]
    reward = sum(w * torch.tensor(c.inputs[f"reward_{name}"]) for name, w in weights.items())
    scale = "global" if c.inputs["global_std"] else "group"
    got = by_name("flow_grpo", reward, c.inputs["group_ids"], advantage_std=scale, advantage_eps=1e-12)
    c.close(got, c.expected["advantages"])
    c = case("credit", "edge/dance_grpo_ignores_flags")
    got = by_name("dance_grpo", c.inputs["rewards"], labels(c.inputs["uid"]), advantage_std="none")
    torch.testing.assert_close(got, c.expected["flow_grpo"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["group", "global", "none"])
def test_equal_rewards_and_one_sample_give_exactly_nothing(scale):
    """They are found by comparing them, not by their std."""
    c = case("credit", "advantage/zero_std_groups/global1")
    got = advantages(c.inputs["rewards"], labels(c.inputs["uid"]), scale=scale, unbiased=True)
    c.close(got, c.expected["advantages_first_column"])
    assert (got == 0).all()
    c = case("credit", "edge/zero_std_ratio_float_residue")
    for size in c.inputs["group_sizes"]:
        reward = torch.tensor(c.inputs["group_values"], dtype=torch.float32).repeat_interleave(size)
        group = torch.arange(len(reward)) // size
        found = group_statistics(reward, group, torch.zeros(len(reward), dtype=torch.bool))
        assert found.constant.float().mean() == c.expected["correct_value"]
    c = case("credit", "edge/single_value_global_std")
    for unbiased in (True, False):
        got = advantages(c.inputs["rewards"], [0], scale=scale, unbiased=unbiased)
        assert got.tolist() == [c.expected["correct_value"]]


@pytest.mark.parametrize("c", cases("credit", "nft/reward_prob/"), ids=lambda c: c.id)
def test_optimality(c):
    got = optimality(c.inputs["advantages"], c.inputs["adv_clip_max"], c.inputs["adv_mode"])
    c.close(got, c.expected["reward_prob"])


@pytest.mark.parametrize(("mode", "expected"), [
    ("continuous", [0, 0.25, 0.5, 0.75, 1]), ("positive_only", [0.5, 0.5, 0.5, 0.75, 1]),
    ("negative_only", [0, 0.25, 0.5, 0.5, 0.5]), ("binary", [0.25, 0.25, 0.5, 0.75, 0.75]),
    ("one_only", [0.5, 0.5, 0.5, 0.75, 0.75]),
])  # fmt: skip
def test_optimality_is_a_probability(mode, expected):
    advantage = torch.tensor([-9.0, -1.0, 0.0, 1.0, 9.0])
    assert optimality(advantage, 2.0, mode).tolist() == expected
    assert set(optimality(advantage, 0.25, mode).tolist()) <= {0, 0.5, 1}


@pytest.mark.parametrize("name", ["copy", "linear_to_0_5", "delayed_linear_to_0_999"])
def test_decay_of_the_old_policy(name):
    made = lookup("flow algorithm", "diffusion_nft")(old={"decay": name})

    def decay(step):
        roles = SimpleNamespace(optimizer_steps=step, blend=lambda *asked, **more: None)
        return made.after_update(roles, 1).get("old_policy/decay", 0.0)

    c = case("credit", "nft/old_policy_decay")
    c.close([decay(step) for step in c.inputs["steps"]], c.expected[name])
    c = case("credit", "schedule/nft_old_policy_decay")
    kind = ["copy", "linear_to_0_5", "delayed_linear_to_0_999"].index(name)
    c.close([decay(step) for step in c.inputs["steps"]], c.expected[f"type{kind}"])


def drawn(seed: int, size: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    reward = torch.randn(size, generator=g)
    group = torch.randint(7, (size,), generator=g)
    missing = torch.rand(size, generator=g) < 0.3
    return reward, group, missing


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scale", ["group", "global", "none"])
@pytest.mark.parametrize("unbiased", [True, False])
def test_missing_rewards_order_and_names_of_groups_do_not_matter(seed, scale, unbiased):
    """And a group sums to nothing."""
    reward, group, missing = drawn(seed)
    options = {"scale": scale, "unbiased": unbiased}
    # whatever stands in place of a missing reward must not be read
    spoiled = torch.where(missing, torch.nan if seed % 2 else 1e30, reward)
    whole = advantages(spoiled, group, missing=missing, **options)
    torch.testing.assert_close(whole[~missing], advantages(reward[~missing], group[~missing], **options))
    assert (whole[missing] == 0).all()
    order = torch.randperm(len(reward), generator=torch.Generator().manual_seed(seed))
    back = advantages(reward[order], group[order] * -1000 - 3, missing=missing[order], **options)
    torch.testing.assert_close(back, whole[order], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.zeros(7).index_add(0, group, whole), torch.zeros(7), rtol=0, atol=1e-5)


TREE = torch.tensor([[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]])  # nodes of a binary tree at each depth


def test_advantages_in_a_tree():
    c = case("credit", "advantage/branch_depthwise")
    reward = torch.tensor(c.inputs["leaf_rewards"])
    got = depthwise_advantages(reward, TREE, torch.zeros(4).long(), torch.zeros(4).bool())
    assert (got[:, 0] == 0).all()
    c.close(got[::2, 1], c.expected["depth1"])
    assert torch.equal(got[::2, 1], got[1::2, 1])
    c.close(got[:, 2], c.expected["depth2"])


def test_trees_know_nothing_of_each_other_and_a_missing_leaf_is_as_if_it_were_not_there():
    reward, none = torch.tensor([0.1, 0.9, 0.4, 0.8]), torch.zeros(8).bool()
    alone = depthwise_advantages(reward, TREE, torch.zeros(4).long(), none[:4])
    group = torch.tensor([5] * 4 + [2] * 4)
    both = depthwise_advantages(torch.cat([3 + 10 * reward, reward]), torch.cat([TREE + 10, TREE]), group, none)
    torch.testing.assert_close(both, torch.cat([alone, alone]))
    missing, group = torch.tensor([False, True, False, False]), torch.zeros(4).long()
    got, rest = depthwise_advantages(reward.masked_fill(missing, torch.nan), TREE, group, missing), ~missing
    torch.testing.assert_close(got[rest], depthwise_advantages(reward[rest], TREE[rest], group[rest], missing[rest]))
    assert (got[missing] == 0).all()


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_lowest_rewards_of_a_group_may_be_left_out_of_its_statistics(unbiased):
    """As MixGRPO's trimmed_ratio: a quarter of four is one; all four are compared with the mean of the other three."""
    reward = [5.0, 0.0, 1.0, 3.0, 7.0, 8.0, 9.0, -6.0]
    got = advantages(reward, [0, 0, 0, 0, 1, 1, 1, 1], trimmed_ratio=0.25, unbiased=unbiased, eps=1e-8)
    rest = torch.tensor([[5.0, 1.0, 3.0], [7.0, 8.0, 9.0]])
    mean, std = rest.mean(1, keepdim=True), rest.std(1, keepdim=True, correction=int(unbiased))
    torch.testing.assert_close(got, ((torch.tensor(reward).view(2, 4) - mean) / std).flatten())
    alike = advantages([0.0, 1.0, 1.0, 1.0], [0] * 4, trimmed_ratio=0.25, unbiased=unbiased, eps=1e-8)
    torch.testing.assert_close(alike, torch.tensor([-1.0, 0.0, 0.0, 0.0]) / (0.5 if unbiased else 0.1875**0.5))


GROUPED = ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "cpgd", "opo", "pass_at_k"]
REWARD = torch.tensor([1.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.3, 0.9, 5.0])
GROUP = torch.tensor([7, 7, 7, 2, 2, 2, 9, 9, 4])  # one that differs, one of equal rewards, one pair, one alone
MISSING = torch.zeros(9, dtype=torch.bool)
OPTIONS = {"reinforce_plus_plus_baseline": {"whiten": False}, "pass_at_k": {"pass_k": 1, "pass_reward": 0.5}}


def rewards(reward=REWARD, group=GROUP, missing=MISSING, *, components=None, weights=(1.0,), actions=3) -> Rewards:
    components = reward[:, None] if components is None else components
    names = tuple(map(str, range(components.shape[1])))
    scores = Scores(
        reward=reward, missing=missing, components=components, names=names, weights=weights, notes=[""] * len(reward)
    )
    return Rewards.of(scores, group, actions)


def test_good_samples_that_are_unlike_the_others_of_their_group_count_more():
    """GARDO's eq. 8, over the mean distance: (r - mean) d / mean(d) where that is above 0."""
    reward = torch.tensor([1.0, 0.0, 0.5, 0.9, 1.0, 0.0, 1.0, 0.0])
    distance = torch.tensor([0.4, 0.1, 0.1, 0.2, NAN, 3.0, 0.0, 0.0])
    given = rewards(
        reward, torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]), MISSING[:8], components=torch.stack([reward, distance], 1),
        weights=(1.0, 0.0),
    )  # fmt: skip
    found, plain = (call(lookup("advantage", "diverse_group")(diversity=one), given) for one in ("1", None))
    assert torch.equal(plain, call(lookup("advantage", "flow_group")(advantage_std="none"), given))
    torch.testing.assert_close(found, torch.tensor([0.8, -0.6, -0.1, 0.3, 0.5, -0.5, 0.5, -0.5]))


def test_a_kl_holds_whom_other_rewards_doubt_most_and_more_of_them_as_doubts_grow():
    """GARDO's eq. 7 by hand, of win rates .75, .5, .25 and 0, to which the others say 0, 0, .5 and nothing; and A.1."""
    reward = torch.tensor([4.0, 3.0, 2.0, 1.0])
    given = rewards(
        reward, torch.zeros(4, dtype=torch.long), MISSING[:4], weights=(1.0, 0.0, 0.0),
        components=torch.tensor([[4.0, 1.0, NAN], [3.0, NAN, 6.0], [2.0, 3.0, 7.0], [1.0, NAN, NAN]]),
    )  # fmt: skip
    gate, memory = lookup("kl gate", "disagreement")(against=("1", "2"), share=0.5), {}
    for _ in range(20):
        found = call(gate, given, memory)
        torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 0.0, 1.0]))  # the last one: nobody judged it
    assert call(gate, replace(given, components=torch.full((4, 3), NAN)), {}).tolist() == [1.0] * 4
    assert memory == {"share": 0.5, "means": [pytest.approx(0.625)] * 20}
    for other, share in (([1.0, 4.0, 3.0, 2.0], 1.0), ([4.0, 3.0, 2.0, 1.0], 0.9)):
        memory["share"] = min(memory["share"] * 1.9, 1.0)
        call(gate, replace(given, components=torch.tensor([reward.tolist(), other, other]).T), memory)
        assert memory["share"] == pytest.approx(share)


def of_samples(name: str, given: Rewards | None = None, **options) -> torch.Tensor:
    made = lookup("language algorithm", name)(**OPTIONS.get(name, {}), **options)
    found = advantages_of(made, given or rewards()).advantage
    assert torch.equal(found, found[:, :1].expand_as(found))
    return found[:, 0]


def test_closed_forms():
    torch.testing.assert_close(of_samples("dr_grpo")[:3], torch.tensor([2 / 3, -1 / 3, -1 / 3]))
    torch.testing.assert_close(of_samples("rloo")[:3], torch.tensor([1.0, -0.5, -0.5]))
    torch.testing.assert_close(of_samples("rloo")[6:8], torch.tensor([-0.6, 0.6]))
    torch.testing.assert_close(of_samples("grpo")[:3], torch.tensor([2.0, -1.0, -1.0]) / 3**0.5, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_samples("cpgd")[:3], torch.tensor([2.0, -1.0, -1.0]) / 2**0.5, rtol=1e-5, atol=0)
    assert of_samples("reinforce_plus_plus_baseline").equal(of_samples("dr_grpo"))


@pytest.mark.parametrize("name", GROUPED)
def test_equal_rewards_say_nothing_and_neither_missing_ones_nor_order_matter(name):
    assert not of_samples(name)[[3, 4, 5, 8]].any()
    missing = torch.zeros(9, dtype=torch.bool)
    missing[[1, 6]] = True
    got, there = of_samples(name, rewards(REWARD.masked_fill(missing, torch.nan), missing=missing)), ~missing
    torch.testing.assert_close(got[there], of_samples(name, rewards(REWARD[there], GROUP[there], MISSING[there])))
    assert not got[missing].any()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(of_samples(name, rewards(REWARD[order], GROUP[order])), of_samples(name)[order])


def test_groups_without_signal_do_not_thin_out_the_others():
    """Two of four groups differ: clip_filter doubles."""
    equal = of_samples("cpgd", weighting="equal")
    torch.testing.assert_close(of_samples("cpgd", weighting="clip_filter"), 2 * equal)
    gone = rewards(missing=GROUP == 4)  # a group of which nothing is known is none
    torch.testing.assert_close(of_samples("cpgd", gone, weighting="clip_filter"), 1.5 * equal)
    one_of_five = rewards(torch.eye(6)[0], torch.tensor([0, 0, 1, 2, 3, 4]), MISSING[:6])
    assert of_samples("cpgd", one_of_five, weighting="clip_filter").tolist() == [1.5, -1.5, 0, 0, 0, 0]


WIDE = torch.tensor([[0.0, 10.0, 3.0], [1.0, 0.0, 5.0], [0.5, 0.0, 7.0], [0.2, 4.0, torch.nan], [0.7, 1.0, 0.0]])
WEIGHTS = (1.0, 0.5, 0.0)  # the third one is only watched


@pytest.mark.parametrize("half", ["language", "flow"])
@pytest.mark.parametrize("how", ["each", "gdpo"])
@pytest.mark.parametrize("scale", ["group", "global"])
def test_several_rewards_are_normalised_one_by_one(half, how, scale):
    """GDPO of tokens and of denoising steps is the same function; each half keeps its defaults of eps and std."""
    reward, group, none = WIDE[:, :2] @ torch.tensor(WEIGHTS[:2]), torch.tensor([0, 0, 1, 1, 1]), MISSING[:5]
    name = {"language": "grpo", "flow": "flow_grpo"}[half]
    made = lookup(f"{half} algorithm", name)(advantage_aggregation=how, advantage_std=scale)
    found = advantages_of(made, rewards(reward, group, none, components=WIDE, weights=WEIGHTS)).advantage
    expected = normalise_each(
        WIDE, WEIGHTS, group, none, scale=scale, eps=made.advantage_eps, unbiased=made.advantage_unbiased,
        whiten=how == "gdpo",
    )  # fmt: skip
    assert torch.equal(found, expected[:, None].expand(-1, 3))
    summed = advantages_of(type(made)(advantage_std=scale), rewards(reward, group, none)).advantage[:, 0]
    assert summed[0] > 0 > expected[0]  # ten points of the second reward outweigh the one point of the first
    gone = torch.arange(5) == 2  # a sample that the reward does not apply to is as if it were not there
    found = normalise_each(WIDE[:, :1], (~gone)[:, None].float(), group, none, scale=scale)
    torch.testing.assert_close(found, normalise_each(WIDE[:, :1], (1.0,), group, gone, scale=scale))
    assert normalise_each(WIDE[:1, :1], (1.0,), group[:1], none[:1], scale=scale, whiten=True).tolist() == [0]


def test_the_optimal_baseline_weighs_long_responses_more():
    """Equal rewards are exactly nothing, and those of empty responses are compared with nothing."""
    lengths = torch.tensor([4, 1, 1, 2, 2, 3, 1, 1, 0, 0])
    mask = torch.arange(4) < lengths[:, None]
    reward = torch.tensor([1.0, 0.0, 1.0, 0.5, 0.2, 0.1, 0.1, 0.1, 1.0, 0.0])
    given = rewards(reward, torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3]), torch.zeros(10).bool())
    found = optimal_baseline(replace(given, mask=mask))
    torch.testing.assert_close(found[:5], torch.tensor([1 - 5 / 6, -5 / 6, 1 - 5 / 6, 0.15, -0.15]))
    assert found[5:].tolist() == [0, 0, 0, 1, 0]


def everyway(correct: list[bool], k: int) -> torch.Tensor:
    groups = list(itertools.combinations(range(len(correct)), k))
    reward = torch.tensor([float(any(correct[i] for i in group)) for group in groups], dtype=torch.float64)
    std = reward.std(correction=0)
    each = (reward - reward.mean()) / std if std > 0 else torch.zeros_like(reward)
    return torch.stack([each[[i in group for group in groups]].mean() for i in range(len(correct))])


@pytest.mark.parametrize("right", [0, 2, 3, 5, 6])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_the_mean_over_all_groups_of_k(k, right):
    correct = [i < right for i in range(6)]
    reward, group = torch.tensor(correct).float(), torch.zeros(6, dtype=torch.long)
    found = pass_at_k(rewards(reward, group, MISSING[:6]), pass_k=k, pass_reward=1.0)
    torch.testing.assert_close(found, everyway(correct, k).float(), rtol=1e-5, atol=1e-6)


def of_steps(steps, rest=(0.0, 0.0, 0.0), group=(0, 0, 1)):
    steps = torch.tensor(steps)
    total, missing = steps.nan_to_num(0.0).sum(1) + torch.tensor(rest), MISSING[: len(steps)]
    return Rewards(
        reward=total, components=total[:, None], weights=(1.0,), applied=torch.ones(len(steps), 1), names=("r",),
        actions=steps.nan_to_num(0.0), by_turn=steps.nan_to_num(0.0), greedy=total,
        group=torch.tensor(group), missing=missing, mask=torch.ones_like(steps, dtype=torch.bool),
        value=torch.zeros(len(steps), 0), steps=steps,
    )  # fmt: skip


def test_a_token_gets_what_its_step_and_later_ones_are_worth():
    steps = [[NAN, 1.0, NAN, 0.0], [0.5, NAN, 0.25, NAN], [NAN, 0.7, NAN, NAN]]
    values = torch.tensor([1.0, 0.0, 0.5, 0.25])  # of the first group
    a, b, c, d = (values - values.mean()) / (values.std() + 1e-6)
    found = group_steps(of_steps(steps), advantage_std="group", advantage_eps=1e-6)
    alone = [0.0] * 4  # one step has nothing to be compared with
    torch.testing.assert_close(found, torch.tensor([[a + b, a + b, b, b], [c + d, d, d, 0.0], alone]))
    steps[1][2] = NAN
    found, more = (group_steps(of_steps(steps, rest), advantage_std="none") for rest in ((0.0,) * 3, (1.0, 0.0, 9.0)))
    torch.testing.assert_close(more - found, torch.tensor([[0.5] * 4, [-0.5] * 4, alone]))


def test_what_is_only_watched_is_correlated_with_the_reward_within_groups():
    paid, watched = [1.0, 2.0, 5.0, 3.0, 7.0], [0.5, 0.1, 0.9, 0.7, 0.2]
    scores = Scores(
        reward=torch.tensor(paid), missing=torch.zeros(5, dtype=torch.bool), names=("paid", "watched"),
        components=torch.tensor([paid, watched]).T, weights=(1.0, 0.0), notes=[""] * 5,
    )  # fmt: skip
    group = [[0, 1, 2], [3, 4]]
    apart = [
        np.concatenate([np.array(one)[rows] - np.array(one)[rows].mean() for rows in group]) for one in (paid, watched)
    ]
    found = reward_metrics(scores, torch.tensor([0, 0, 0, 1, 1]))["critic/watched/reward_correlation"]
    assert found == pytest.approx(np.corrcoef(*apart)[0, 1], rel=1e-5)
