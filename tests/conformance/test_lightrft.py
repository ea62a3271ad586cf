"""LightRFT's numbers for PPO and its kin: losses with gradients, credit, shaping, whitening.

What is wrong there is tested for the value that is required instead; ``lightrft.md`` lists every case that another
part of Burnish answers, or that ours must differ from.
"""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.advantages.rewards import Rewards
from burnish.advantages.shaping import clip_values
from burnish.advantages.whitening import RunningMoments
from burnish.algorithms.base import advantages_of
from burnish.algorithms.kl import TokenKl
from burnish.algorithms.language.shaping import shape
from burnish.language.head import chosen_scores
from burnish.losses.entropy import entropy
from burnish.losses.policy import masked, sequence_mean, terms
from burnish.registry import lookup
from burnish.rollout.filter import varied
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from tests.conformance import Case
from tests.conformance.lightrft import every
from tests.support.language_tables import annotated, judged
from tests.support.token_losses import aggregate

GRPO = "seq-mean-token-mean"  # LightRFT's only aggregation


def mask_of(c: Case, like: str) -> torch.Tensor:
    return c.inputs["action_mask"].bool() if "action_mask" in c.inputs else torch.ones_like(c.inputs[like]).bool()


def gradient(loss, tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, tensor)[0]


def algorithm(name: str, **options: Any) -> Any:
    """The class that a recipe's ``algorithm.name`` names."""
    return lookup("language algorithm", name)(**options)


@every("policy_loss")
def test_policy_loss(c):
    given, mask = c.inputs, mask_of(c, "log_probs")
    logprob = given["log_probs"].clone().requires_grad_()
    made = algorithm("cpgd" if given.get("use_cpg_loss") else "grpo", clip=given["clip_eps"])
    each, _ = made.objective(logprob, given["old_log_probs"], given["advantages"], mask, torch.ones_like(logprob))
    total = aggregate(each, mask, GRPO)
    c.close(total, c.expected["loss"])
    c.close(gradient(total, logprob), c.expected["grad_log_probs"])


@every("value_loss")
def test_value_loss(c):
    given, mask = c.inputs, mask_of(c, "values")
    value = given["values"].clone().requires_grad_()
    made = algorithm("ppo", value_clip=given["clip_eps"], loss_agg_mode=GRPO)
    part: Any = SimpleNamespace(
        value=given["old_values"], returns=given["returns"], mask=mask, update=1, trace=None, limit=mask.shape[1]
    )
    roles: Any = SimpleNamespace(frozen=lambda update: True, values=lambda trace: value)  # while the critic warms up
    total = made.loss(part, roles).total / made.size(part)
    c.close(total, c.expected["loss"])
    c.close(gradient(total, value), c.expected["grad_values"])


@every("gptlm_loss")
def test_supervised_loss(c):
    logits = c.inputs["logits"].clone().requires_grad_()
    labels = c.inputs["labels"][:, 1:]
    mask = labels != -100
    logprob, spread = scores(logits[:, :-1], labels.clamp_min(0))
    trace = judged(torch.zeros(len(mask)), mask).trace
    given = OfflineResponses(answers=ResponseRows(trace=trace, members=1), good=mask[:, 0], update=1, version=0, seed=0)
    made = algorithm("sft")
    batch, _ = made.credit(given)
    roles: Any = SimpleNamespace(policy=lambda trace: SimpleNamespace(logprob=logprob, entropy=spread))
    total = made.loss(batch, roles).total / made.size(batch)
    c.close(total, c.expected["loss"])
    c.close(gradient(total, logits), c.expected["grad_logits"])


@every("log_probs", "entropy_from_logits")
def test_log_probs_and_entropy(c):
    logits = c.inputs["logits"]
    logprob, spread = scores(logits, c.inputs.get("labels", torch.zeros(logits.shape[:-1], dtype=torch.long)))
    if "out" in c.expected:
        c.close(logprob, c.expected["out"])
    else:
        c.close(entropy(logits), c.expected["entropy"])
        c.close(spread, c.expected["entropy"])


def scores(logits, ids):
    """Of the language head, which is the identity here."""
    vocabulary = logits.shape[-1]
    nothing = torch.zeros(0, dtype=torch.long)
    found = chosen_scores(logits.flatten(0, 1), torch.eye(vocabulary), ids.flatten(), temperature=1.0, banned=nothing)
    return [values.view_as(ids) for values in found]


PAIR = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
PAIR_OF = ("policy", "ref")


@every("dpo")
def test_dpo_and_ipo(c):
    pairs, made = [c.inputs[name] for name in PAIR], algorithm("ipo", beta=c.inputs["beta"], average_log_prob=False)
    if not c.inputs["ipo"]:
        made = algorithm("dpo", beta=c.inputs["beta"], label_smoothing=c.inputs["label_smoothing"])
    loss, values = made.preferred(*pairs, torch.zeros(len(pairs[0])))
    c.close(loss.mean(), c.expected["loss"])
    c.close(values["rewards/chosen"], c.expected["chosen_rewards"])
    c.close(values["rewards/rejected"], c.expected["rejected_rewards"])


def one_token_each(good: torch.Tensor) -> OfflineResponses:
    """Responses of one token, good and bad ones."""
    trace = judged(torch.zeros(len(good)), torch.ones(len(good), 1, dtype=torch.bool)).trace
    trace = replace(trace, ids=torch.arange(len(good))[:, None])
    return OfflineResponses(answers=ResponseRows(trace=trace, members=1), good=good, update=1, version=0, seed=0)


@every("kto")
def test_kto_on_pairs(c):
    """Chosen and rejected responses are measured from each other, as with ``reference_point=opposite``."""
    logprob, reference = [torch.cat([c.inputs[f"{who}_chosen"], c.inputs[f"{who}_rejected"]]) for who in PAIR_OF]
    good = torch.arange(len(logprob)) < len(c.inputs["policy_chosen"])
    rows = one_token_each(good)
    made = algorithm("kto", online=False, beta=c.inputs["beta"], reference_point="opposite")
    says = [lambda trace, said=said: SimpleNamespace(logprob=said[trace.ids]) for said in (logprob, reference)]
    roles: Any = SimpleNamespace(
        policy=says[0],
        reference=says[1],
        micro_batch_size=len(logprob),
        clock=lambda name: nullcontext(),
        distribute=lambda run, parts: [run(part) for part in parts],
    )
    batch, _ = made.credit(made.annotate(rows, roles))
    loss = made.loss(batch, roles)
    c.close(loss.total / len(batch), c.expected["loss"])
    for name in ("chosen", "rejected"):
        total, count = loss.metrics[f"rewards/{name}"]
        c.close(total / count, c.expected[f"{name}_rewards"].mean())


@every("masked_mean")
def test_masked_mean(c):
    """By axis: a batch is summed and divided once, a sequence has its own mean, an empty one 0 and no count."""
    tensor, mask, axis = c.inputs["tensor"], c.inputs["mask"].bool(), c.inputs["dim"]
    if axis is None:
        c.close(aggregate(tensor, mask, "token-mean"), c.expected["out"])
    elif axis == 0:
        c.close(sequence_mean(tensor.T, mask.T), c.expected["out"])
    else:
        c.close(sequence_mean(tensor, mask), c.expected.get("required_out", c.expected.get("out")))
        assert int(terms(mask, GRPO)) == int((mask.sum(-1) > 0).sum())


@every("kl.")
def test_kl_estimates(c):
    given, mask = c.inputs, mask_of(c, "log_probs")
    kl = TokenKl(kind=given["kl_estimator"]).estimate(
        given["log_probs"], given["ref_log_probs"], mask, old=given["log_probs"]
    )
    assert kl.dtype == torch.float32
    c.close(kl, c.expected["kl"])
    if "seq_mean" in c.expected:
        c.close(sequence_mean(kl, mask), c.expected["seq_mean"])
        c.close(aggregate(kl, mask, GRPO), c.expected["kl_loss"])


@every("adaptive_kl")
def test_adaptive_kl(c):
    control = TokenKl(
        controller="adaptive", coef=c.inputs["init_kl_coef"], target=c.inputs["target"], horizon=c.inputs["horizon"]
    ).make_controller()
    trace = []
    for current, samples in c.inputs["updates"]:
        control.update(current, samples)
        trace.append(control.coef)
    torch.testing.assert_close(trace, c.expected["values"], rtol=1e-8, atol=0)


def penalised(name: str, c: Case, kl: torch.Tensor, mask: torch.Tensor, **options: Any) -> Rewards:
    """What is left of rewards once the KL is taken off, as a run with ``kl.route=reward`` does it."""
    coef = c.inputs["kl_coef"]  # below 0 it counts as 0 there, and ours is refused
    made = algorithm(name, kl={"route": "reward", "coef": coef} if coef > 0 else None, **options)
    return shape(made, annotated(made, judged(c.inputs["reward"], mask), kl=kl))[0]


@every("compute_reward")
def test_reward_with_kl(c):
    given = c.inputs
    if "action_mask" in given:
        shaped = penalised("reinforce", c, given["kl"], given["action_mask"].bool())
        return c.close(shaped.actions, c.expected["out"])
    kl = torch.nn.utils.rnn.pad_sequence(given["kl"], batch_first=True, padding_value=torch.nan)
    mask = torch.arange(kl.shape[1]) < torch.tensor(given["num_actions"])[:, None]
    shaped = penalised("reinforce", c, kl, mask)
    for row, chosen, expected in zip(shaped.actions, mask, c.expected["out"], strict=True):
        c.close(row[chosen], expected)


def by_token(c: Case, **options: Any) -> tuple[Any, Any, torch.Tensor]:
    """The algorithm of a case with rewards at every token, what it makes of them, and the mask."""
    given, mask = c.inputs, c.inputs["action_mask"].bool()
    made = algorithm("reinforce", gamma=given["gamma"], **options)
    if "values" in given:
        made = algorithm("ppo", gamma=given["gamma"], lam=given["lambd"], **options)
    rewards = shape(made, annotated(made, judged(torch.zeros(len(mask)), mask), value=given.get("values")))[0]
    return made, advantages_of(made, replace(rewards, actions=given["rewards"])), mask


@every("gae.g1", "returns")
def test_advantages_and_returns(c):
    _, found, _ = by_token(c, whiten=False)
    c.close(found.returns, c.expected["returns"])
    if "advantages" in c.expected:
        c.close(found.advantage, c.expected["advantages"])


@every("gae.norm_clip", "reinforce.norm_clip")
def test_whitened_and_clipped_advantages(c):
    """Padding stays 0, where LightRFT shifts it; the fraction is that of chosen tokens, before they are clipped."""
    made, found, mask = by_token(c, advantage_clip=c.inputs["advantage_clip"])
    clipped, metrics = made.clipped(found.advantage, mask)
    c.close(clipped[mask], c.expected["advantages"][mask])
    c.close(found.returns, c.expected["returns"])
    assert not clipped[~mask].any()
    expected = {"gae.norm_clip": 4 / 9, "reinforce.norm_clip": 7 / 9}[c.id]
    assert metrics["critic/advantages/clip_ratio"] == pytest.approx(expected)


def compared(name: str, reward: torch.Tensor, group: torch.Tensor, **options: Any) -> torch.Tensor:
    """An algorithm's advantage of each sample [B], compared within groups."""
    made, mask = algorithm(name, **options), torch.ones(len(reward), 1, dtype=torch.bool)
    return advantages_of(made, shape(made, annotated(made, judged(reward, mask, group)))[0]).advantage[:, 0]


@every("group.")
def test_group_advantages(c):
    reward, kind = c.inputs["rewards"], c.id.removeprefix("group.")
    group = torch.arange(len(reward)) // c.inputs["n_samples_per_prompt"]
    if kind == "group_norm":
        return c.close(compared("grpo", reward, group, advantage_eps=1e-9), c.expected["shaped"])
    c.close(compared("reinforce_plus_plus_baseline", reward, group, whiten=False), c.expected["shaped"])


@every("cpgd.")
def test_cpgd_advantages(c):
    """LightRFT compares a micro-batch; ours a whole group, which is the case's only one here."""
    mask = c.inputs["action_mask"].bool()
    reward = masked(c.inputs["rewards"], mask).sum(-1)
    made = algorithm("cpgd", weighting={"STD_weight": "std", "mean_only": "equal"}[c.inputs["weight_factor"]])
    rewards = shape(made, annotated(made, judged(reward, mask, torch.zeros(len(reward), dtype=torch.long))))[0]
    c.close(advantages_of(made, rewards).advantage, c.expected["advantages"])


@every("cross_batch_norm", "buffer_normalize")
def test_whitening_over_the_whole_batch(c):
    """All parts of an update are one batch; what is masked is in no statistic, and stays 0."""
    given, masks = [[torch.atleast_2d(one) for one in c.inputs[name]] for name in ("advantages", "masks")]
    mask = rows_of(masks).bool()
    sums = masked(rows_of(given), mask)
    if c.inputs.get("estimator") == "group_norm":  # GRPO's are of spread 1 within each group already
        assert "whiten" not in vars(algorithm("grpo"))
        return
    made = algorithm("reinforce", whiten_std="none" if c.inputs.get("no_advantage_std_norm") else "biased")
    earned = sums - torch.nn.functional.pad(sums, (0, 1))[:, 1:]  # from each token on the case's advantages
    known = shape(made, annotated(made, judged(torch.zeros(len(mask)), mask)))[0]
    found = advantages_of(made, replace(known, actions=masked(earned, mask))).advantage
    expected = rows_of([torch.atleast_2d(one) for one in c.expected.get("required", c.expected.get("advantages"))])
    c.close(found[mask], expected[mask])
    assert not found[~mask].any()


def rows_of(parts) -> torch.Tensor:
    """Rows of several batches, one under the other, padded with 0."""
    return torch.nn.utils.rnn.pad_sequence([row for part in parts for row in part.float()], batch_first=True)


@every("running_moments")
def test_running_moments(c):
    running = RunningMoments()
    for values, expected in zip(c.inputs["batches"], c.expected["trace"], strict=True):
        reward = torch.tensor(values)
        batch = running.update(reward, torch.ones(len(reward), dtype=torch.bool))
        c.close(batch.mean, expected["batch_mean"])
        c.close(batch.std(unbiased=True), expected["batch_std"])
        c.close(running.known.mean, expected["run_mean"])
        c.close(running.known.std(unbiased=True), expected["run_std"])
        c.close(running.known.count, expected["count"])


@every("clip_fraction")
def test_clip_fraction(c):
    _, fraction = clip_values(c.inputs["values"], c.inputs["clip_min"], c.inputs["clip_max"])
    c.close(torch.tensor(fraction).expand(len(c.expected["out"])), c.expected["out"])


@every("overlong_penalty")
def test_overlong_penalty(c):
    given, length = c.inputs, torch.tensor(c.inputs["response_lengths"])
    options = {"buffer": given["overlong_buffer_len"], "factor": given["overlong_buffer_penalty_factor"]}
    made, mask = algorithm("dapo", overlong=options), torch.arange(int(length.max())) < length[:, None]
    scored = judged(torch.tensor(given["rewards"]), mask, limit=given["max_new_tokens"])
    c.close(shape(made, annotated(made, scored))[0].reward, c.expected["rewards"])


@every("dynamic_sampling")
def test_dynamic_sampling(c):
    reward, count = torch.tensor(c.inputs["rewards"]), c.inputs["n_samples_per_prompt"]
    group = torch.arange(len(reward)) // count
    kept = varied(judged(reward, torch.ones(len(reward), 1, dtype=torch.bool), group))
    keep = torch.isin(torch.arange(len(reward)), kept).view(-1, count)
    assert keep.all(1).tolist() == keep.any(1).tolist() == c.expected["required_keep_group"]
    c.close(compared("dapo", reward, group, advantage_eps=1e-9), c.expected["shaped"])


@every("gamma_pop_bug")
def test_every_micro_batch_is_discounted(c):
    mask = torch.ones(1, c.inputs["response_len"], dtype=torch.bool)
    for reward, required in zip(c.inputs["rewards"], c.expected["required"], strict=True):
        made = algorithm("reinforce", gamma=c.inputs["gamma"], whiten=False)
        rewards = shape(made, annotated(made, judged(torch.tensor([reward]), mask)))[0]
        c.close(advantages_of(made, rewards).returns, required)


@every("pipeline")
def test_reward_clip_kl_and_gae_together(c):
    given, mask = c.inputs, c.inputs["action_mask"].bool()
    made = algorithm(
        "ppo", gamma=given["gamma"], lam=given["lambd"], whiten=False, reward_clip=given["reward_clip"],
        kl={"route": "reward", "coef": given["kl_coef"]},
    )  # fmt: skip
    known = annotated(made, judged(given["reward"], mask), kl=given["kl"], value=given["values"])
    rewards, _, metrics = shape(made, known)
    found = advantages_of(made, rewards)
    c.close(found.advantage, c.expected["advantages"])
    c.close(found.returns, c.expected["returns"])
    c.close(rewards.actions.sum(1), c.expected["info_return"])
    fraction = torch.tensor(metrics["critic/rewards/clip_ratio"])
    c.close(fraction.expand(len(mask)), c.expected["reward_clip_frac"])


@every("high_entropy_mask")
def test_high_entropy_mask(c):
    """LightRFT takes a threshold per sequence. Padding is never selected, and tokens that tie are treated alike."""
    mask, fraction = c.inputs["action_mask"].bool(), c.inputs["ratio"]
    # 0 selects all there; ours is refused, and 1 is what is meant
    options = {"high_entropy_fraction": fraction, "high_entropy_per": "sequence"} if fraction else {}
    made = algorithm("grpo", **options)
    scored = judged(torch.zeros(len(mask)), mask)
    batch, _ = made.credit(replace(annotated(made, scored), entropy=c.inputs["entropy"]))
    weight = batch.weight
    if "reference_mask" in c.expected:
        assert weight.bool().equal(mask)
    else:
        c.close(weight, c.expected["mask"].float())
