"""Samples are scored as they end: in any portions, with the scores of one that were submitted together."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from burnish.options import ScoringOptions
from burnish.registry import lookup
from burnish.rewards.batching import Collector
from burnish.rewards.breaker import RewardsFailing
from burnish.rewards.scoring import Scorer
from burnish.rewards.text.base import Response
from burnish.types.prompt import Prompt
from tests.support.failing_rewards import most_at_once, spans, until
from tests.support.language_runs import SMALL, assembly_of, trained

PROMPTS = [Prompt(text=name, answer="1") for name in "aabbcc"]
GROUP = [0, 0, 1, 1, 2, 2]


def reward(name="exact", **options):
    return lookup("language reward", name)(**options)


class Recording(Scorer):
    """Writes down how many samples came together."""

    def __init__(self, rewards, processes=1):
        super().__init__(rewards, ScoringOptions(processes=0))
        self.options = ScoringOptions(processes=0) if processes == 0 else ScoringOptions(processes=processes)
        self.portions: list[list[str]] = []

    def start(self):
        """Nothing but this process scores."""

    def submit(self, samples, prompts, given=None) -> Future:
        self.portions.append([sample.text for sample in samples])
        with Scorer(self.rewards, ScoringOptions(processes=0)) as here:
            return here.submit(samples, prompts, given)


def collected(scorer, one_by_one=True, order=((1,), (0, 3), (2,), (5, 4))):
    scoring = Collector(scorer, PROMPTS, GROUP, update=1, one_by_one=one_by_one)
    texts = [f"<answer>{row % 3}</answer>" for row in range(6)]
    for rows in order:
        scoring.add(rows, [Response(texts[row]) for row in rows])
    scoring.add(range(6), [Response(text) for text in texts])  # all are there: it changes nothing
    return scoring.scores(lambda: None)


def test_portions_have_the_scores_of_the_whole_in_the_order_of_the_rows():
    scorer = Recording({"it": reward()})
    scores = collected(scorer)
    assert scores.reward.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert [len(portion) for portion in scorer.portions] == [1, 2, 1, 2]


def test_a_model_and_one_that_compares_get_those_of_a_prompt_together(monkeypatch):
    for attribute, one_by_one, expected in (
        ("has_weights", True, [2, 2, 2]),
        ("has_weights", False, [1, 2, 1, 2]),
        ("compares", False, [2, 2, 2]),
    ):
        one = reward()
        with monkeypatch.context() as patched:
            patched.setattr(type(one), attribute, True if attribute == "has_weights" else lambda self: "groups")
            scorer = Recording({"it": one})
            assert collected(scorer, one_by_one).reward.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
        assert [len(portion) for portion in scorer.portions] == expected


def test_all_wait_for_the_end_where_this_process_scores_or_weights_take_turns(monkeypatch):
    scorer = Recording({"it": reward()}, processes=0)
    collected(scorer)
    assert [len(portion) for portion in scorer.portions] == [6]
    one = reward()
    monkeypatch.setattr(type(one), "puts_away", property(lambda self: True))
    scorer = Recording({"it": one})
    collected(scorer)
    assert [len(portion) for portion in scorer.portions] == [6]


@pytest.mark.slow
def test_scoring_overlaps_sampling_and_shares_processes(tmp_path):
    """Several are scored at once, the first while other responses are still written."""
    overrides = [*(one for one in SMALL if not one.startswith(("scoring", "rollout.n"))), "rollout.max_new_tokens=24"]
    assembly = assembly_of(
        *overrides, "scoring.processes=4", "rollout.n=8", "scoring.probe=false", "trainer.mini_batch_size=null",
        "rewards.mine={name: function, path: 'tests.support.failing_rewards:counts_itself', weight: 0.5, "
        f"arguments: {{folder: '{tmp_path}', meeting: 3}}}}",
    )  # fmt: skip
    ended: list[int] = []  # responses
    sample = assembly.engine.sample

    def waiting(job):
        def finished(rows, responses):
            job.finished(rows, responses)
            if not ended:
                assert until(lambda: any(tmp_path.iterdir())), "nothing is scored before all responses have ended"
            ended.append(len(rows))

        return sample(replace(job, finished=finished))

    assembly.engine.sample = waiting
    with assembly.scorer as scorer:
        scored = assembly.source.collect(1)
    assert ended[0] < sum(ended) == 32
    some = spans(tmp_path)
    assert len(some) == len(scored) == 32
    assert most_at_once(some) >= 3
    assert set(scored.execution) == set(scorer.rewards)


def test_a_dropped_group_moves_no_other():
    """Groups that are whole have the rewards and advantages that they have where nothing fails."""

    def batch(*more):
        assembly = assembly_of(
            *SMALL, "scoring.probe=false", "trainer.mini_batch_size=null", "algorithm.name=grpo", *more
        )
        with assembly.scorer:
            scored = assembly.source.collect(1)
        learned, _ = assembly.workers.credit(assembly.workers.annotate(scored))
        return scored, learned

    good, learned = batch("rewards.mine={name: function, path: 'tests.support.some_fail:length', weight: 0.5}")
    bad, remaining = batch(
        "rewards.mine={name: function, path: 'tests.support.some_fail:fails', weight: 0.5, on_failure: drop_group}"
    )
    dropped = bad.scores.missing
    assert 0 < int(dropped.sum()) < len(dropped)
    groups = {int(group) for group, lost in zip(bad.group, dropped, strict=True) if lost}
    assert dropped.tolist() == [int(group) in groups for group in bad.group]
    assert bad.execution["mine"].dropped == int(dropped.sum())
    torch.testing.assert_close(bad.scores.reward[~dropped], good.scores.reward[~dropped], rtol=0, atol=0)
    torch.testing.assert_close(remaining.advantage, learned.advantage[~dropped], rtol=0, atol=0)


def test_a_run_whose_reward_fails_on_and_on_ends_with_the_cause():
    assembly = assembly_of(
        *SMALL, "scoring.probe=false", "trainer.mini_batch_size=null", "scoring.max_failures=9",
        "rewards.mine={name: function, path: 'tests.support.bad_rewards:raises', weight: 0}",
    )  # fmt: skip
    with assembly.scorer, pytest.raises(RewardsFailing, match=r"reward mine failed for 9 samples in a row .*not today"):
        trained(assembly, 1, 3)
