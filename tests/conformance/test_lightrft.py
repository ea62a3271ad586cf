"""LightRFT's numbers for PPO and its kin: losses with gradients, credit, shaping, whitening.

What is wrong there is tested for the value that is required instead; ``lightrft.md`` lists every case that another
part of Burnish answers, or that ours must differ from.
"""

from typing import Any

import pytest
import torch

import burnish
from burnish.language.logprobs import chosen_scores
from burnish.language.losses import high_entropy_mask, implicit_rewards, kto, kto_reference_point, value_loss
from burnish.registry import lookup
from burnish.rl.kl import KlController, kl_estimate
from burnish.rl.surrogates import masked, sequence_mean
from tests.conformance import Case, cases
from tests.support.language_tables import annotated, judged
from tests.support.tiny_run import burnish as command
from tests.support.token_losses import aggregate

GRPO = "seq-mean-token-mean"  # LightRFT's only aggregation


def every(*prefixes: str) -> pytest.MarkDecorator:
    """One test per case; ``test_complete.py`` reads where this stands, so that no case is forgotten."""
    return pytest.mark.parametrize("c", cases("lightrft", *prefixes), ids=lambda c: c.id)


def mask_of(c: Case, like: str) -> torch.Tensor:
    return c.inputs["action_mask"].bool() if "action_mask" in c.inputs else torch.ones_like(c.inputs[like]).bool()


def gradient(loss, tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, tensor)[0]


def algorithm(name: str, **options: Any) -> Any:
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
    each, _ = value_loss(value, given["old_values"], given["returns"], mask, clip=given["clip_eps"])
    total = aggregate(each, mask, GRPO)
    c.close(total, c.expected["loss"])
    c.close(gradient(total, value), c.expected["grad_values"])


@every("gptlm_loss")
def test_supervised_loss(c):
    logits = c.inputs["logits"].clone().requires_grad_()
    labels = c.inputs["labels"][:, 1:]
    logprob, _ = scores(logits[:, :-1], labels.clamp_min(0))
    total = aggregate(-logprob, labels != -100, "token-mean")
    c.close(total, c.expected["loss"])
    c.close(gradient(total, logits), c.expected["grad_logits"])


@every("log_probs", "entropy_from_logits")
def test_log_probs_and_entropy(c):
    logits = c.inputs["logits"]
    logprob, spread = scores(logits, c.inputs.get("labels", torch.zeros(logits.shape[:-1], dtype=torch.long)))
    if "out" in c.expected:
        return c.close(logprob, c.expected["out"])
    c.close(spread, c.expected["entropy"])


def scores(logits, ids):
    vocabulary = logits.shape[-1]
    nothing = torch.zeros(0, dtype=torch.long)
    found = chosen_scores(logits.flatten(0, 1), torch.eye(vocabulary), ids.flatten(), temperature=1.0, banned=nothing)
    return [values.view_as(ids) for values in found]


PAIR = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")


@every("dpo")
def test_dpo_and_ipo(c):
    beta = c.inputs["beta"]
    chosen, rejected, *reference = (c.inputs[name] for name in PAIR)
    won, lost = chosen - reference[0], rejected - reference[1]
    made = algorithm("ipo", beta=beta, average_log_prob=False)
    if not c.inputs["ipo"]:
        made = algorithm("dpo", beta=beta, label_smoothing=c.inputs["label_smoothing"])
    loss, _ = made.preferred(won, lost, torch.zeros(len(won)))
    values = implicit_rewards(won, lost, beta=beta)
    c.close(loss.mean(), c.expected["loss"])
    c.close(values["rewards/chosen"], c.expected["chosen_rewards"])
    c.close(values["rewards/rejected"], c.expected["rejected_rewards"])


@every("kto")
def test_kto_on_pairs(c):
    """Chosen and rejected responses are measured from each other, as with ``reference_point=opposite``."""
    chosen, rejected, *reference = (c.inputs[name] for name in PAIR)
    ahead, losses, beta = [chosen - reference[0], rejected - reference[1]], [], c.inputs["beta"]
    for good, ours, base, other in ((True, chosen, reference[0], ahead[1]), (False, rejected, reference[1], ahead[0])):
        desirable = torch.full((len(ours),), good)
        loss, values = kto(ours, base, desirable, kto_reference_point(other), beta=beta)
        losses.append(loss)
        name = "chosen" if good else "rejected"
        c.close(values[f"rewards/{name}"].mean(), c.expected[f"{name}_rewards"].mean())
    c.close(torch.cat(losses).mean(), c.expected["loss"])


@every("kl.")
def test_kl_estimates(c):
    given, mask = c.inputs, mask_of(c, "log_probs")
    kl = kl_estimate(given["log_probs"], given["ref_log_probs"], mask, given["kl_estimator"])
    c.close(kl, c.expected["kl"])
    if "seq_mean" in c.expected:
        c.close(sequence_mean(kl, mask), c.expected["seq_mean"])
        c.close(aggregate(kl, mask, GRPO), c.expected["kl_loss"])


@every("adaptive_kl")
def test_adaptive_kl(c):
    given = c.inputs
    control = KlController(given["init_kl_coef"], target=given["target"], horizon=given["horizon"])
    trace = [control.update(*one) or control.coef for one in given["updates"]]
    torch.testing.assert_close(trace, c.expected["values"], rtol=1e-8, atol=0)


def credited(name: str, reward: Any, mask: torch.Tensor, **more: Any) -> tuple[Any, dict[str, float]]:
    """What an algorithm learns from rewards [B], and what it reports."""
    known = {key: more.pop(key, None) for key in ("kl", "value")}
    given = {key: more.pop(key) for key in ("group", "limit") if key in more}
    made = algorithm(name, **{"kl": more.pop("penalty", None)} | more if known["kl"] is not None else more)
    return made.compute_advantages(annotated(made, judged(reward, mask, **given), **known))


def by_token(name: str, rewards: torch.Tensor, mask: torch.Tensor, **more: Any) -> tuple[Any, dict[str, float]]:
    """The same of rewards at every token: as a KL that is taken off there."""
    return credited(name, torch.zeros(len(mask)), mask, kl=-rewards, penalty={"route": "reward", "coef": 1.0}, **more)


@every("compute_reward")
def test_reward_with_kl(c):
    """Below 0 a coefficient counts as 0 there, and ours is refused."""
    given, coef = c.inputs, c.inputs["kl_coef"]
    options: Any = {"whiten": False, "gamma": 0.0, "penalty": {"route": "reward", "coef": coef} if coef > 0 else None}
    if "action_mask" in given:
        mask = given["action_mask"].bool()
        return c.close(
            credited("reinforce", given["reward"], mask, kl=given["kl"], **options)[0].advantage, c.expected["out"]
        )
    kl = torch.nn.utils.rnn.pad_sequence(given["kl"], batch_first=True, padding_value=torch.nan)
    mask = torch.arange(kl.shape[1]) < torch.tensor(given["num_actions"])[:, None]
    found = credited("reinforce", given["reward"], mask, kl=kl, **options)[0].advantage
    for row, chosen, expected in zip(found, mask, c.expected["out"], strict=True):
        c.close(row[chosen], expected)


@every("gae.g1", "returns", "gae.norm_clip", "reinforce.norm_clip")
def test_advantages_and_returns(c):
    """Padding stays 0, where LightRFT shifts it; the fraction is that of chosen tokens, before they are clipped."""
    given, mask = c.inputs, c.inputs["action_mask"].bool()
    options: Any = {
        "gamma": given["gamma"], "advantage_clip": given.get("advantage_clip"), "whiten": "norm_clip" in c.id,
    }  # fmt: skip
    name = "ppo" if "values" in given else "reinforce"
    options |= {"lam": given["lambd"], "value": given["values"]} if name == "ppo" else {}
    batch, metrics = by_token(name, given["rewards"], mask, **options)
    if name == "ppo":
        c.close(batch.returns, c.expected["returns"])
    if "advantages" in c.expected:
        c.close(batch.advantage[mask], c.expected["advantages"][mask])
    elif name == "reinforce":
        c.close(batch.advantage, c.expected["returns"])
    assert not batch.advantage[~mask].any()
    if "norm_clip" in c.id:
        expected = {"gae.norm_clip": 4 / 9, "reinforce.norm_clip": 7 / 9}[c.id]
        assert metrics["critic/advantages/clip_ratio"] == pytest.approx(expected)


def compared(name: str, reward: torch.Tensor, size: int, **options: Any) -> torch.Tensor:
    """An algorithm's advantage of each sample [B], compared within groups of that size."""
    mask, group = torch.ones(len(reward), 1, dtype=torch.bool), torch.arange(len(reward)) // size
    return credited(name, reward, mask, group=group, **options)[0].advantage[:, 0]


@every("group.", "dynamic_sampling")
def test_group_advantages(c):
    """Of equal rewards exactly nothing."""
    reward, size = torch.as_tensor(c.inputs["rewards"]), c.inputs.get("n_samples_per_prompt")
    if "group_norm" in c.id or "dynamic" in c.id:
        return c.close(compared("grpo", reward, size, advantage_eps=1e-9), c.expected["shaped"])
    c.close(compared("reinforce_plus_plus_baseline", reward, size, whiten=False), c.expected["shaped"])


@every("cpgd.")
def test_cpgd_advantages(c):
    """LightRFT compares a micro-batch; ours a whole group, which is the case's only one here."""
    mask = c.inputs["action_mask"].bool()
    weighting = {"STD_weight": "std", "mean_only": "equal"}[c.inputs["weight_factor"]]
    reward, group = masked(c.inputs["rewards"], mask).sum(-1), torch.zeros(len(mask), dtype=torch.long)
    c.close(credited("cpgd", reward, mask, group=group, weighting=weighting)[0].advantage, c.expected["advantages"])


@every("cross_batch_norm", "buffer_normalize")
def test_whitening_over_the_whole_batch(c):
    """All parts of an update are one batch; what is masked is in no statistic, and stays 0."""
    given, masks = [[torch.atleast_2d(one) for one in c.inputs[name]] for name in ("advantages", "masks")]
    mask = rows_of(masks).bool()
    sums = masked(rows_of(given), mask)
    if c.inputs.get("estimator") == "group_norm":
        return  # GRPO's are of spread 1 within each group already
    earned = sums - torch.nn.functional.pad(sums, (0, 1))[:, 1:]  # from each token on the case's advantages
    std = "none" if c.inputs.get("no_advantage_std_norm") else "biased"
    found = by_token("reinforce", masked(earned, mask), mask, whiten_std=std)[0].advantage
    expected = rows_of([torch.atleast_2d(one) for one in c.expected.get("required", c.expected.get("advantages"))])
    c.close(found[mask], expected[mask])
    assert not found[~mask].any()


def rows_of(parts) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([row for part in parts for row in part.float()], batch_first=True)


@every("overlong_penalty")
def test_overlong_penalty(c):
    given, length = c.inputs, torch.tensor(c.inputs["response_lengths"])
    options = {"buffer": given["overlong_buffer_len"], "factor": given["overlong_buffer_penalty_factor"]}
    mask = torch.arange(int(length.max())) < length[:, None]
    reward = torch.tensor(given["rewards"])
    batch, _ = credited("reinforce", reward, mask, whiten=False, overlong=options, limit=given["max_new_tokens"])
    c.close(batch.advantage[:, 0], c.expected["rewards"])


@every("pipeline")
def test_reward_clip_kl_and_gae_together(c):
    given, mask = c.inputs, c.inputs["action_mask"].bool()
    batch, metrics = credited(
        "ppo", given["reward"], mask, gamma=given["gamma"], lam=given["lambd"], whiten=False, kl=given["kl"],
        reward_clip=given["reward_clip"], penalty={"route": "reward", "coef": given["kl_coef"]}, value=given["values"],
    )  # fmt: skip
    c.close(batch.advantage, c.expected["advantages"])
    c.close(batch.returns, c.expected["returns"])
    fraction = torch.tensor(metrics["critic/rewards/clip_ratio"])
    c.close(fraction.expand(len(mask)), c.expected["reward_clip_frac"])


@every("high_entropy_mask")
def test_high_entropy_mask(c):
    """LightRFT takes a threshold per sequence. Padding is never selected, and tokens that tie are treated alike."""
    mask, fraction = c.inputs["action_mask"].bool(), c.inputs["ratio"]
    # 0 selects all there; ours is refused, and 1 is what is meant
    weight = high_entropy_mask(c.inputs["entropy"], mask, fraction or 1.0, per="sequence")
    if "reference_mask" in c.expected:
        assert weight.equal(mask)
    else:
        c.close(weight, c.expected["mask"].float())


@every("schedule")
def test_optimizer_steps_follow_from_the_sizes(c):
    """Nothing is divided by n twice; a mini-batch of several rollouts is asked for in so many words."""
    given, per_rollout = c.inputs, c.expected["actual_optimizer_steps_per_rollout"]
    sizes = [
        f"data.train_batch_size={given['rollout_batch_size']}", f"rollout.n={given['n_samples']}",
        f"trainer.mini_batch_size={given['train_batch_size']}", f"trainer.epochs={given['max_epochs']}",
    ]  # fmt: skip
    rollouts = 1
    if per_rollout < 1:
        assert "an update has only" in command("config", "vlm_quickstart", *sizes, status=2).message
        rollouts = round(1 / per_rollout)
    updates = max(given["num_prompts"] // given["rollout_batch_size"] // rollouts, 1)
    sizes += [f"trainer.rollouts_per_update={rollouts}", f"steps={updates}", "optimizer.warmup_steps=0"]
    assert burnish.load("vlm_quickstart", *sizes).optimizer_steps == updates * rollouts * per_rollout
    assert rollouts > 1 or updates == c.expected["num_rollouts_per_episode"]
