"""Responses and networks made of tables: a network looks up what it thinks of a token, so that tests take no time."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from burnish.language.batches import AnnotatedTokens
from burnish.language.logprobs import TokenScores
from burnish.rl.algorithm import Algorithm
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, ResponseRows
from burnish.types.rollout import OfflineJudgements, OfflineResponses, Prompt, ScoredResponses, Scores

INDEX = [0, 0, 0, 1, 1, 1, 2, 2, 2]
LENGTHS = [4, 1, 3, 5, 2, 4, 3, 0, 2]
REWARDS = [0.9, 0.0, 0.5, 0.0, 1.0, 1.0, 0.3, 0.3, 0.3]  # the last prompt's are equal
LIMIT = 5


def answered() -> ScoredResponses:
    """Responses of one, several and no tokens, finished and cut, one of them in two turns."""
    rows, length = len(INDEX), torch.tensor(LENGTHS)
    mask = torch.arange(LIMIT) < length[:, None]
    mask[3, 2] = False  # what the environment said between two turns
    draw = torch.Generator().manual_seed(0)
    noise = 0.5 * torch.randn(rows, LIMIT, generator=draw)
    turns = torch.zeros(rows, 2)
    turns[3] = torch.tensor([0.6, -0.6])
    scored = judged(
        torch.tensor(REWARDS), mask, torch.tensor(INDEX), greedy=0.5 * torch.rand(rows, generator=draw),
        turn_rewards=turns, prompts=[Prompt(text=str(i)) for i in INDEX],
    )  # fmt: skip
    first = [torch.tensor([0, 1, 2])] * 3
    table = Encoded(ids=first, positions=[one[None] for one in first], features=[Features()] * 3)
    trace = replace(
        scored.trace, prompts=Gathered(table=table, index=torch.tensor(INDEX)), length=length,
        ids=torch.arange(rows * LIMIT).view(rows, LIMIT), finished=torch.tensor([True, True, False] * 3),
        logprob=torch.where(mask, Tables().logprob.detach().view(rows, LIMIT) + noise, 0.0),
    )  # fmt: skip
    return replace(scored, trace=trace)


def judged(reward: Tensor, mask: Tensor, group: Tensor | None = None, **more: Any) -> ScoredResponses:
    """Rewards [B] of responses whose tokens count where ``mask`` [B, T], each with a prompt of its own by default."""
    rows, width = mask.shape
    table = Encoded(ids=[torch.tensor([0])], positions=[torch.zeros(1, 1).long()], features=[Features()])
    asked = Gathered(table=table, index=torch.zeros(rows, dtype=torch.long))
    trace = Completion.of_text(asked, torch.zeros(rows, width, dtype=torch.long), mask.sum(1), axes=1)
    trace.mask = mask
    scores = Scores(
        reward=reward, missing=torch.zeros(rows, dtype=torch.bool), components=reward[:, None], names=("r",),
        weights=(1.0,), notes=[""] * rows,
    )  # fmt: skip
    given: dict[str, Any] = {"greedy": torch.full((rows,), torch.nan), "limit": width, "scores": scores}
    given |= {"prompts": [Prompt(text="")] * rows, "turn_rewards": torch.zeros(rows, 0)} | more
    return ScoredResponses(
        group=torch.arange(rows) if group is None else group, sample=torch.arange(rows), trace=trace, update=1,
        version=0, seed=0, **given,
    )  # fmt: skip


def annotated(
    algorithm: Any, scored: ScoredResponses, *, kl: Tensor | None = None, value: Tensor | None = None
) -> AnnotatedTokens:
    """What the networks would have added: a k1 estimate [B, T] of the KL, and the value network's predictions."""
    nothing = scored.trace.logprob[:, :0]
    compared = nothing if kl is None else kl
    return AnnotatedTokens(
        scored=scored, old=scored.trace.logprob, learner=nothing, entropy=nothing,
        reference=torch.zeros_like(compared), compared=compared, value=nothing if value is None else value,
        old_logprobs="sampler", memory=algorithm.make_memory(),
    )  # fmt: skip


def given(members: int) -> OfflineResponses:
    """The first responses as if they came from a file, the second one in two to be avoided."""
    trace = answered().trace.select(torch.arange(6))
    good = torch.arange(6 // members) % 2 == 0
    return OfflineResponses(answers=ResponseRows(trace=trace, members=members), good=good, update=1, version=0, seed=0)


def labelled(heads: int, members: int) -> OfflineJudgements:
    """The first responses with labels of two steps, the last of which some lack, for a reward model to learn."""
    trace, rows = answered().trace.select(torch.arange(6)), 6 // members
    mask = torch.zeros_like(trace.mask)
    mask[:, :2] = True
    target = (torch.arange(rows * 2 * heads) % 3 == 0).float().view(rows, 2, heads)
    target[0, 1] = torch.nan
    answers = ResponseRows(trace=replace(trace, mask=mask), members=members)
    margin = torch.full_like(target, 0.5)
    return OfflineJudgements(answers=answers, target=target, margin=margin, update=1, version=0, seed=0)


class TableTeachers:
    """One teacher, whose distributions over five tokens grow steeper with a table, as the policy's do."""

    def __init__(self, roles: Tables) -> None:
        self.roles = roles

    def asked(self, scored: ScoredResponses) -> list[Any]:
        return [(prompt,) for prompt in scored.prompts]

    def begin(self, asked: Any, trace: Completion, top_k: int) -> None:
        pass

    def worth(self, asked: Any, trace: Completion, measure: Any) -> Tensor:
        return torch.where(trace.mask, measure(trace.logprob, self.roles.reference(trace).logprob), 0.0).detach()

    def compare(self, asked: Any, trace: Completion, measure: Any, top_k: int) -> tuple[TokenScores, Tensor]:
        student, teacher = (
            (role(trace).logprob[trace.mask][:, None] * torch.arange(5)).log_softmax(-1)
            for role in (self.roles.policy, self.roles.reference)
        )
        apart = measure(student, teacher.detach(), None)
        return self.roles.policy(trace), torch.zeros(trace.mask.shape).masked_scatter(trace.mask, apart)


class Tables:
    """Roles of a worker whose policy has moved since it sampled."""

    on_policy, moved, fresh, sampler_rounds, micro_batch_size = False, True, False, False, 10_000
    clock = nullcontext

    def __init__(self, memory: Any = None, heads: int = 1) -> None:
        self.memory, self.refreshed, self.heads = memory, 0.0, heads
        draw = torch.Generator().manual_seed(1)
        size = len(INDEX) * LIMIT
        self.logprob = (-2 * torch.rand(size, generator=draw)).requires_grad_()
        self.entropy = torch.rand(size, generator=draw).requires_grad_()
        self.value = torch.rand(size, generator=draw).requires_grad_()
        self.teachers = TableTeachers(self)
        self._reference = self.logprob.detach() + 0.3 * torch.randn(size, generator=draw)

    def _scores(self, logprob: Tensor, completion: Completion) -> TokenScores:
        def chosen(table: Tensor) -> Tensor:
            return torch.where(completion.mask, table[completion.ids], 0.0)

        return TokenScores(logprob=chosen(logprob), entropy=chosen(self.entropy))

    def policy(self, completion: Completion) -> TokenScores:
        return self._scores(self.logprob, completion)

    def reference(self, completion: Completion) -> TokenScores:
        return self._scores(self._reference, completion)

    def values(self, completion: Completion) -> Tensor:
        return torch.where(completion.mask, self.value[completion.ids], 0.0)

    def judgements(self, completion: Completion) -> Tensor:
        return self.values(completion)[:, :, None].expand(-1, -1, self.heads)

    def scores_and_values(self, completion: Completion) -> tuple[TokenScores, Tensor]:
        return self.policy(completion), self.values(completion)

    def distribute(self, function: Any, parts: Any) -> list[Any]:
        return [function(part) for part in parts]

    def step(self) -> None:
        """Move policy and critic, as an optimizer does."""
        draw = torch.Generator().manual_seed(2)
        with torch.no_grad():
            self.logprob -= 0.2 * torch.rand(self.logprob.shape, generator=draw)
            self.value += 0.5 * torch.randn(self.value.shape, generator=draw)

    def move(self, name: str, source: str, share: float = 1.0) -> None:
        self.refreshed += share

    def frozen(self, update: int) -> bool:
        return False


def observed(algorithm: Algorithm, updates: int = 2) -> list[Any]:
    """What can be seen of an algorithm: what it asks for, what it reports, and its gradients, in some updates."""
    needs = algorithm.needs()
    roles: Any = Tables(algorithm.make_memory(), len(needs.heads))
    seen: list[Any] = [needs]
    for update in range(1, updates + 1):
        collected: Any = replace(answered(), update=update)
        if needs.heads:
            collected = labelled(len(needs.heads), 2 if needs.data == "comparisons" else 1)
        elif needs.data != "prompts":
            collected = given(2 if needs.data == "preferences" else 1)
        batch, metrics = algorithm.compute_advantages(algorithm.compute_logprobs(collected, roles))
        roles.step()
        size = algorithm.size(batch)
        seen += [sorted(metrics.items()), size]
        for part in algorithm.micro_batches(batch, roles.micro_batch_size) if size else ():
            loss = algorithm.loss(part, roles)
            (loss.total / size).backward()
            seen += [float(loss.total.detach())] + [
                (name, float(one), float(n)) for name, (one, n) in loss.metrics.items()
            ]
        for table in (roles.logprob, roles.entropy, roles.value):
            seen.append(None if table.grad is None else table.grad.tolist())
            table.grad = None
        seen += [sorted(algorithm.after_update(roles, update).items()), roles.refreshed]
    return seen
