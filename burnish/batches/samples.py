"""Finished samples with a judgement, learned from on the forward process: at noise levels drawn for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.batches.levels import NoiseLevels
from burnish.flow.times import diffuse
from burnish.types.batch import Batch, Gathered, shared, to_device
from burnish.types.columns import at, read
from burnish.types.rollout import Conditioning, OfflineSamples, Scored, share_of, unprompted
from burnish.utils import random


def together(present: Tensor, slots: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Samples at slots, about ``size`` at once; the members of a row at a slot stay together.

    Args:
        present: [B, M], whether a member of a row is there.
        slots: noise levels or steps of each row.
        size: samples at slots of a part.

    Yields:
        The number of row and slot together, the row, the slot and the member of each, all on the CPU.
    """
    rows, members = present.shape
    each, there = max(1, size // members), present.cpu()
    for start in range(0, rows * slots, each):
        atom = torch.arange(start, min(start + each, rows * slots)).repeat_interleave(members)
        row, slot = atom // slots, atom % slots
        member = torch.arange(members).repeat(len(atom) // members)
        if (kept := there[row, member]).any():
            yield atom[kept], row[kept], slot[kept], member[kept]


@dataclass(kw_only=True)
class JudgedSamples(Batch):
    """Finished samples, what each is worth, and the noise levels to train at. What is compared stands in one row.

    M members to a row: 1 where samples are judged on their own, 2 in a preference pair, or a whole group.
    """

    conditioning: Gathered[Conditioning]  # [B] what the members of a row share
    clean: Tensor  # [B, M, ...]
    noised: Tensor  # [B, ...] bool: elements of every member that are noised, or what broadcasts to them
    value: Tensor  # [B, M] what the algorithm makes of the reward
    present: Tensor  # [B, M] bool: the others have no reward, and no term
    time: Tensor  # [B, J] shared by the members
    uid: list[str]  # [B]
    sample: Tensor  # [B, M] long: with uid and level it names the noise
    shared_noise: bool = shared()  # all members get the noise of the first
    seed: int = shared()
    update: int = shared()

    def costs(self) -> list[int]:
        """Members of each row that are there."""
        return [int(members) for members in self.present.sum(1).tolist()]

    def terms(self, size: int) -> Iterator[ForwardTerms]:
        """One term per sample and noise level, about ``size`` at once; members of a row at a level stay together.

        The noise depends on the sample alone, never on what else is in the batch.
        """
        for atoms in together(self.present, self.time.shape[1], size):
            yield self._terms(*atoms)

    def _terms(self, atom: Tensor, row: Tensor, level: Tensor, member: Tensor) -> ForwardTerms:
        sample = self.sample.cpu()[row, torch.zeros_like(member) if self.shared_noise else member]
        keys = [
            (self.seed, "forward", self.update, self.uid[r], s, k)
            for r, s, k in zip(row.tolist(), sample.tolist(), level.tolist(), strict=True)
        ]
        device = self.clean.device
        noise = to_device(random.normal(self.clean.shape[2:], keys), device)
        clean, noised = read(at(self.clean, row, member)), read(at(self.noised, row))
        time = to_device(self.time.cpu()[row, level], device)
        return ForwardTerms(
            conditioning=self.conditioning.select(row),
            clean=clean,
            noisy=diffuse(clean, noise, time, noised),
            target=torch.where(noised, noise - clean, 0.0),
            share=share_of(noised),
            time=time,
            value=to_device(self.value.cpu()[row, member], device),
            atom=to_device(atom, device),
        )

    def judged(self) -> int:
        """Samples that have a judgement."""
        return int(self.present.sum())


@dataclass(kw_only=True)
class ForwardTerms(Batch):
    """Terms of the loss: one row of a forward each."""

    conditioning: Gathered[Conditioning]
    clean: Tensor  # [M, ...]
    noisy: Tensor  # [M, ...] x_t; clean where elements are not noised
    target: Tensor  # [M, ...] noise - clean, the velocity that a perfect model predicts on average; 0 there, as it is
    share: Tensor  # [M] of the elements that are noised: means are over these
    time: Tensor  # [M]
    value: Tensor  # [M]
    atom: Tensor  # [M] long: equal in terms that are compared with each other


def judge(
    scored: Scored,
    value: Tensor,
    levels: NoiseLevels,
    *,
    members: Tensor | None = None,
    shared_noise: bool = False,
) -> JudgedSamples:
    """Join samples with their credit and draw the noise levels to train at. Rows without any reward are left out.

    Args:
        scored: [B] rollouts.
        value: [B] what each is worth.
        levels: where the noise levels come from.
        members: [R, M] long, rows of ``scored`` that are compared with each other, -1 where there is none; None
            puts each sample into a row of its own.
        shared_noise: give the members of a row the same noise.
    """
    if members is None:
        members = torch.arange(len(scored))[:, None]
    present = (members >= 0) & ~scored.scores.missing.cpu()[members]
    members, present = members[present.any(1)], present[present.any(1)]
    first = members[:, 0]
    uid = [scored.prompts[i].uid for i in first.tolist()]
    keys = [(scored.seed, "time", scored.update, u, int(scored.sample[i])) for u, i in zip(uid, first, strict=True)]
    return JudgedSamples(
        conditioning=scored.trace.conditioning.select(first),
        clean=at(scored.trace.latents, members),
        noised=at(scored.trace.noised, first),
        value=value[members],
        present=present,
        time=levels.draw(keys, scored.trace.schedule) if keys else scored.trace.schedule.new_zeros(0, 1),
        uid=uid,
        sample=scored.sample[members],
        shared_noise=shared_noise,
        seed=scored.seed,
        update=scored.update,
    )


def groups_of(scored: Scored) -> Tensor:
    """[G, M] long: the rows of each group, groups in rising order of ids, -1 where a group has fewer than M."""
    numbers = scored.group.tolist()
    rows: dict[int, list[int]] = {number: [] for number in sorted(set(numbers))}
    for row, number in enumerate(numbers):
        rows[number].append(row)
    longest = max(map(len, rows.values()), default=1)
    return torch.tensor([some + [-1] * (longest - len(some)) for some in rows.values()]).view(-1, longest)


def take(given: OfflineSamples, levels: NoiseLevels, value: Tensor) -> JudgedSamples:
    """Finished pictures to learn from; the members of a row share noise and time.

    Args:
        given: [B] rows of M pictures.
        levels: where the noise levels come from.
        value: [M] what the members of each row are worth.
    """
    count, members = given.latents.shape[:2]
    seen: Counter[str] = Counter()
    times: list[int] = []
    for uid in given.uid:  # a small data set may fill a batch with the same picture twice: with other noise, then
        times.append(seen[uid])
        seen[uid] += 1
    first = torch.tensor(times)[:, None] * members
    keys = [(given.seed, "time", given.update, u, s) for u, s in zip(given.uid, first[:, 0].tolist(), strict=True)]
    return JudgedSamples(
        conditioning=given.conditioning,
        clean=given.latents,
        noised=given.noised,
        value=value.expand(count, members),
        present=torch.ones(count, members, dtype=torch.bool),
        time=levels.draw(keys, given.schedule),
        uid=given.uid,
        sample=first + torch.arange(members),
        shared_noise=True,
        seed=given.seed,
        update=given.update,
    )


def without_prompts(judged: JudgedSamples, share: float) -> JudgedSamples:
    """The same samples, about a ``share`` of them with the negative prompt, empty by default, in place of their own."""
    keys = [
        (judged.seed, "no prompt", judged.update, u, int(s))
        for u, s in zip(judged.uid, judged.sample[:, 0], strict=True)
    ]
    dropped = random.uniform(1, keys)[:, 0] < share
    both = Gathered.cat([judged.conditioning, unprompted(judged.conditioning)])
    rows = torch.arange(len(judged))
    return replace(judged, conditioning=both.select(torch.where(dropped, rows + len(judged), rows)))
