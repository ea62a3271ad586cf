"""Ranks that sample and evaluate together, and data that they share: what one would do, and no more memory."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from burnish import load
from burnish.rollout.requests import join, split
from burnish.tasks import assemble
from burnish.tasks.language.shared_prompts import SharedPrompts
from burnish.training.ranks import SINGLE_RANK, own_rows
from burnish.types.batch import Gathered
from burnish.types.completion import Encoded, Features
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import Cancelled, UserError
from tests.support.rank_runs import together

PATCHES, WIDTH, PROMPTS = 50, 100, 12
OPTIONS = [
    "steps=2", "data.train_batch_size=3", "rollout.n=2", "rollout.batch_size=2", "scoring.processes=0",
    "rewards.ocr=null", "rewards.jpeg_compressibility.weight=1", "algorithm=flow_grpo", "algorithm.kl_coef=0.1",
    "validation.max_prompts=3", "optimizer.schedule_updates=null", "rollout.num_inference_steps=3",
    "algorithm.window={kind: random, size: 1}",
]  # fmt: skip


def moved(assembly):
    """Have the policy differ from the reference, by the same on all ranks."""
    with torch.no_grad():
        for weight in assembly.roles.parameters().values():
            weight.add_(0.01)


def given(assembly):
    return assembly.prompt_schedule.request(1, 0, Counter())


def on_ranks(ranks, folder):
    """What a rank samples, with which networks gathered; then with nothing to do, and cancelled."""
    assembly = assemble(load("quickstart", *OPTIONS, "model.lora=null"), ranks)
    moved(assembly)
    model, gathered = assembly.roles.model, set()
    predict = model.predict

    def watched(*arguments, **more):
        networks = assembly.roles.shards.networks
        gathered.add(tuple(name for name, network in networks.items() if network.is_gathered))
        return predict(*arguments, **more)

    model.predict = watched
    chunk = split(given(assembly), ranks.size)[ranks.rank]
    found = assembly.generate(chunk), assembly.evaluate(None, n=2), gathered
    if ranks.rank:
        assert assembly.generate(None) is None
        assembly.stop = lambda: True
        with pytest.raises(Cancelled):
            assembly.generate(chunk)
    else:
        assert [len(assembly.generate(chunk)) for _ in range(2)] == [len(chunk)] * 2
    assert not any(network.is_gathered for network in assembly.roles.shards.networks.values())
    return found


@pytest.mark.thorough
@pytest.mark.cluster
def test_two_ranks_sample_as_one_and_hold_one_full_network_at_a_time(tmp_path):
    both = together(on_ranks, tmp_path, deadline=300)
    alone = assemble(load("quickstart", *OPTIONS, "model.lora=null"), SINGLE_RANK)
    moved(alone)
    expected = alone.generate(given(alone))
    scored = join([found for found, _, _ in both])
    assert torch.equal(scored.trace.latents, expected.trace.latents)
    assert torch.equal(scored.scores.reward, expected.scores.reward)
    for metric in ("actor/velocity_norm_ratio", "actor/velocity_distance"):
        assert scored.metrics[metric] == pytest.approx(expected.metrics[metric], rel=1e-6)
        assert scored.metrics[metric] not in (0.0, 1.0)
    assert [gathered for *_, gathered in both] == [{("policy",), ("reference",)}] * 2
    assert both[0][1] == both[1][1] == alone.evaluate(None, n=2)


class Together:
    """One of several ranks, each a thread."""

    def __init__(self, rank, size, barrier, table):
        self.rank, self.size, self.barrier, self.table, self.gathered = rank, size, barrier, table, 0

    def gather(self, value):
        self.gathered += 1
        self.table[self.rank] = value
        self.barrier.wait()
        found = list(self.table)
        self.barrier.wait()
        return found


def prompt(number):
    shown = () if number % 4 == 3 else (Media.encoded(bytes([number])),)
    return Prompt(text=f"question {number}", images=shown)


class Processor:
    """Encodes prompts, keeps what it made, and counts."""

    def __init__(self, wrong=None):
        self.made, self.wrong = {}, wrong

    def __call__(self, prompts):
        for one in prompts:
            number = int(one.text.split()[1])
            if number == self.wrong:
                raise UserError(f"{one.text} can't be read")
            if one.uid not in self.made:
                pixels = torch.full((PATCHES + number, WIDTH), float(number))
                features = Features({"images": pixels}) if one.images else Features.none()
                ids = torch.arange(3 + number)
                self.made[one.uid] = Encoded(ids=[ids], positions=[ids[None]], features=[features])
        table = Encoded.cat([self.made[one.uid] for one in prompts])
        return Gathered(table=table, index=torch.arange(len(prompts)))

    @property
    def pixels(self):
        return sum(one.features[0].size for one in self.made.values())


def each(size, act):
    barrier, table = threading.Barrier(size, timeout=20), [None] * size
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: act(Together(rank, size, barrier, table)), range(size)))


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_processes_its_share_and_all_know_the_lengths(size):
    prompts, whole = [prompt(i) for i in range(PROMPTS)], Processor()
    expected = whole([*prompts, prompts[1]])

    def act(ranks):
        processor = Processor()
        shared = SharedPrompts(processor, ranks, cached=1 << 20)
        found = shared([*prompts, prompts[1]])
        outlined = processor.pixels
        for row in range(PROMPTS)[own_rows(ranks, PROMPTS)]:
            assert torch.equal(found.rows().features[row].get("images"), expected.rows().features[row].get("images"))
        again = shared(prompts)
        assert ranks.gathered == 1, "outlines are kept"
        assert [one.tolist() for one in again.table.ids] == [one.tolist() for one in expected.table.ids[:PROMPTS]]
        assert found.index.tolist() == [*range(PROMPTS), 1]
        assert [one.size for one in found.table.features] == [one.size for one in expected.table.features[:PROMPTS]]
        return outlined, processor.pixels

    for outlined, held in each(size, act):
        share, row = whole.pixels / size, (PATCHES + PROMPTS) * WIDTH
        assert outlined <= share + row
        assert held <= share + 2 * row, "what a rank learns is about what it looked at for the lengths"


def test_what_one_rank_can_not_read_ends_all_and_text_alone_needs_no_other_rank():
    def act(ranks):
        with pytest.raises(UserError, match="question 9"):
            SharedPrompts(Processor(wrong=9), ranks, cached=1 << 20)([prompt(i) for i in range(PROMPTS)])

    each(2, act)
    alone = SharedPrompts(Processor(), SINGLE_RANK, cached=1 << 20)([prompt(3), prompt(7)])
    assert alone.table.lengths == [6, 10]
