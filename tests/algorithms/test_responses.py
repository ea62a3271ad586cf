"""Algorithms that learn from responses, with tables in place of networks: what they mean, and which rows count."""

from dataclasses import replace

import pytest
import torch

from burnish.registry import lookup
from burnish.types.completion import ResponseRows
from burnish.types.rollout import OfflineResponses
from tests.support.language_tables import REWARDS, Tables, annotated, answered, judged
from tests.support.token_losses import mask_of

KL = {"coef": 0.1}
NAMES = [
    "ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    "gspo", "gmpo", "cispo", "sapo", "cpgd", "remax", "opo", "dppo", "drpo", "kl_cov", "clip_cov",
]  # fmt: skip
POLICY_GRADIENTS = [(name, {"kl": KL, "entropy_coef": 0.01}) for name in NAMES]
PREFERENCES = [
    ("dpo", {"label_smoothing": 0.1, "rpo_alpha": 0.5}), ("dpo", {"average_log_prob": True, "reference_free": True}),
    ("ipo", {}), ("simpo", {}), ("orpo", {}), ("mpo", {}),
    ("kto", {"threshold": 0.4, "average_log_prob": True, "undesirable_weight": 2.0, "reference_point": "opposite"}),
    ("sft", {"online": True, "best": 2}), ("sft", {"online": True, "loss_agg_mode": "seq-mean-token-mean"}),
    ("sft", {"online": True, "best": 3, "reward_temperature": 0.5}),
]  # fmt: skip


def made(name, **options):
    return lookup("language algorithm", name)(**options)


def scored(rewards=REWARDS, missing=()):
    """Responses to three prompts, of which one is empty and one has two turns."""
    one, reward = answered(), torch.tensor(rewards)
    absent = torch.zeros(9, dtype=torch.bool)
    absent[list(missing)] = True
    scores = replace(one.scores, reward=reward, components=reward[:, None], missing=absent)
    return replace(one, scores=scores)


def learned(algorithm, given=None, roles=None):
    roles = roles or Tables(algorithm.make_memory())
    batch, metrics = algorithm.compute_advantages(algorithm.compute_logprobs(given or scored(), roles))
    return roles, batch, metrics


def gradient(algorithm, batch, roles, budget=10_000):
    """The loss of a batch in micro-batches of so many tokens, and its gradients to all tables."""
    tables, total = (roles.logprob, roles.entropy, roles.value), 0.0
    for table in tables:
        table.grad = None
    for part in algorithm.micro_batches(batch, budget):
        loss = algorithm.loss(part, roles).total / algorithm.size(batch)
        loss.backward()
        total += float(loss.detach())
    return total, torch.stack([torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in tables])


@pytest.mark.parametrize(("name", "options"), POLICY_GRADIENTS + PREFERENCES, ids=str)
def test_neither_cuts_nor_order_change_the_gradient(name, options):
    algorithm = made(name, **options)
    roles, batch, metrics = learned(algorithm)
    roles.step()
    loss, expected = gradient(algorithm, batch, roles)
    assert expected.isfinite().all()
    assert expected.abs().max() > 0
    order = torch.tensor([6, 7, 8, 3, 4, 5, 0, 1, 2])
    given = replace(scored().select(order), seed=0)
    _, turned, others = learned(algorithm, given, Tables(algorithm.make_memory()))
    assert len(list(algorithm.micro_batches(turned, 1))) == len(turned)  # a pair is never parted
    for one in (batch, turned):
        again, found = gradient(algorithm, one, roles, 1)
        assert again == pytest.approx(loss, abs=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert others == pytest.approx(metrics, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", ["dpo", "ipo", "kto"])
def test_responses_from_a_file_are_learned_as_sampled_ones_are(name):
    online, offline = made(name), made(name, online=False)
    rows = [0, 1, 2, 3, 4, 5] if name == "kto" else [0, 1, 4, 3]
    good = [True, False, True, False, True, True] if name == "kto" else [True, True]
    answers = ResponseRows(trace=scored().trace.select(torch.tensor(rows)), members=len(rows) // len(good))
    written = OfflineResponses(answers=answers, good=torch.tensor(good), update=1, version=0, seed=0)
    roles, batch, _ = learned(online)
    _, given, metrics = learned(offline, written)
    torch.testing.assert_close(gradient(online, batch, roles), gradient(offline, given, roles))
    assert "critic/rewards/mean" not in metrics
    assert offline.needs().data == ("judgements" if name == "kto" else "preferences")


@pytest.mark.parametrize(("name", "options", "rewards", "missing", "left"), [
    ("dpo", {}, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.6], [], 1),
    ("dpo", {}, REWARDS, [0, 1], 1), ("dpo", {}, REWARDS, range(9), 0), ("ipo", {}, [1.0] * 9, [], 0),
    ("kto", {}, [1.0] * 9, [], 0), ("kto", {}, [1.0, 1.0, 0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.5], [2], 2),
    ("kto", {"threshold": 0.5}, [1.0] * 9, [3], 8), ("kto", {}, REWARDS, range(9), 0),
    ("sft", {"online": True, "best": 2}, REWARDS, [4], 6), ("sft", {"online": True, "min_reward": 0.9}, REWARDS, [], 2),
])  # fmt: skip
def test_only_what_differs_is_compared_and_only_the_best_imitated(name, options, rewards, missing, left):
    assert len(learned(made(name, **options), scored(rewards, missing))[1]) == left


def test_a_reward_of_a_turn_counts_from_its_end_back_if_asked():
    mask = torch.tensor([[1, 1, 0, 1, 0]]).bool()
    one = replace(judged(torch.tensor([3.0]), mask), turn_rewards=torch.tensor([[1.0, 0.5]]))
    for turns, expected in ((True, [[3.0, 3.0, 0, 2.0, 0]]), (False, [[3.0, 3.0, 0, 3.0, 0]])):
        algorithm = made("reinforce", whiten=False, turn_rewards=turns)
        assert algorithm.compute_advantages(annotated(algorithm, one))[0].advantage.tolist() == expected


def test_remax_compares_with_the_greedy_response():
    algorithm, greedy = made("remax"), torch.tensor([0.5, 1.0, torch.nan])
    given = annotated(algorithm, judged(torch.ones(3), mask_of([2, 1, 2], 2), greedy=greedy))
    batch, metrics = algorithm.compute_advantages(given)
    assert batch.advantage.tolist() == [[0.5, 0.5], [0, 0]]  # what has no greedy response is not learned from
    assert metrics["critic/score/mean"] == 1.0


def test_old_log_probs_are_the_samplers_only_if_it_agrees():
    """A correction weighs what they disagree about, within its bounds, or rejects it."""
    algorithm, roles, wrong = made("grpo"), Tables(), scored()
    right = replace(wrong, trace=replace(wrong.trace, logprob=roles.policy(wrong.trace).logprob.detach()))
    assert algorithm.compute_logprobs(right, roles).metrics["old_policy/recomputed"] == 0
    again = algorithm.compute_logprobs(wrong, roles)
    assert again.metrics["old_policy/recomputed"] == 1
    assert torch.equal(again.old, right.trace.logprob)
    _, batch, metrics = learned(made("grpo", rollout_correction={"upper": 1.2}), wrong)
    ratio = (right.trace.logprob - wrong.trace.logprob)[wrong.trace.length > 0].exp().clamp(max=1.2)
    torch.testing.assert_close(batch.weight[batch.mask], ratio[batch.mask])
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(float(ratio[batch.mask].max()))
    rejecting = {"weights": "none", "reject": "seq_mean_k1", "reject_above": 1.0001, "reject_below": 0.9999}
    assert len(learned(made("grpo", rollout_correction=rejecting), wrong)[1]) == 0
    assert len(learned(made("grpo", rollout_correction={}), scored(missing=range(9)))[1]) == 0


def test_what_compares_with_no_reference_and_no_reward_so_far_reads_none():
    _, batch, _ = learned(made("mpo", quality_weight=0.0, reference_free=True))
    assert (batch.reference.count_nonzero(), batch.point.count_nonzero()) == (0, 0)


@pytest.mark.parametrize(("name", "options"), [
    ("grpo", {"kl": {"controller": "adaptive", "target": 0.1, "horizon": 50, "coef": 0.1}, "reward_norm": True}),
    ("mpo", {}),
])  # fmt: skip
def test_what_a_run_remembers_goes_on_where_it_was(name, options):
    algorithm = made(name, **options)

    def seen(roles, update):
        _, batch, metrics = learned(algorithm, scored([reward * update for reward in REWARDS]), roles)
        return metrics, (batch.point if name == "mpo" else batch.advantage).tolist()

    whole, resumed, alone = (Tables(algorithm.make_memory()) for _ in range(3))
    seen(whole, 1)
    whole.step()
    resumed.logprob = whole.logprob
    for kind, part in resumed.memory.items():
        part.load_state_dict(whole.memory[kind].state_dict())
    assert seen(whole, 2) == seen(resumed, 2) != seen(alone, 2)
