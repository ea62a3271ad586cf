"""The phases of a run, one after the other as in training, each under the counter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from burnish.forecast.brief import BriefTrainer, Rests, phases_of_updates
from burnish.forecast.counter import BATCH, BUFFERS, HOST, WEIGHTS, LiveBytes
from burnish.forecast.pretended import FixedScores, at_hand
from burnish.rollout.requests import RolloutRequest, join, split
from burnish.tasks import Assembly
from burnish.utils.errors import UserError

LOAD, RECEIVE, SAMPLE, ANNOTATE = "load", "receive", "sample", "annotate"
VALIDATE, PUBLISH, SAVE = "validate", "publish", "save"
BASELINE = "baseline"  # the untrained model is evaluated with guidance
SCORE = "score"  # in a pool of its own
RESTS = Rests()  # nothing in CPU memory
ROUNDS = 2  # policy updates: optimizers have their states from the first one on


class Half(Protocol):
    """What a task's forecast has of its own."""

    def data(self, count: int) -> Mapping[str, Any]:
        """Attributes of an assembly that are made up where the data of the run is not at hand: train_prompts first."""
        ...

    def parts(self) -> Iterable[nn.Module]:
        """Everything that has weights."""
        ...

    def shorten(self) -> None:
        """Do once what a run does many times alike."""
        ...

    def caches(self) -> Iterable[Any]:
        """What is kept from one batch to the next, in CPU memory."""
        ...

    def validate(self) -> None:
        """Sample as a validation does, and each of its suites."""
        ...

    def baseline(self) -> None:
        """Sample as the evaluation of the untrained model does, if there is one."""
        ...

    def again(self) -> None:
        """Another round begins."""
        ...


def train_phases(
    assembly: Assembly,
    counter: LiveBytes,
    half: Half,
    *,
    samples: bool,
    brief: bool = True,
    primed: bool = True,
    rests: Rests = RESTS,
) -> None:
    """What a process of the pool ``train`` does until its second policy update is done, from loading to saving.

    Args:
        assembly: of a run; nothing of it has been used yet.
        counter: which is active.
        half: the task's.
        samples: whether it samples, as without a pool of its own for that.
        brief: do once what is done many times alike; False is the full run.
        primed: of a brief run, make the optimizers' states without the first update.
        rests: what is in CPU memory.
    """
    trainer = _loaded(assembly, counter, half, brief=brief, rests=rests)
    if assembly.config.reference_guidance is not None:
        with counter.phase(BASELINE), assembly.trained_weights():
            half.baseline()
    last = max(ROUNDS, *(group.first_update for group in trainer.groups))
    if brief and primed:
        trainer.prime(last)
    for update in [last] if brief and primed else range(1, ROUNDS + 1):
        half.again()
        for name, peak in counter.peaks.items():
            peak.wire *= name == LOAD  # of everything else, what one update has sent
        _update(assembly, counter, half, trainer, update, samples=samples, rests=rests)
    if assembly.config.validates:
        with counter.phase(VALIDATE), assembly.trained_weights():
            half.validate()
    with counter.phase(SAVE):
        state = trainer.state_dict()
        counter.saved = sum(counter.size_of(one) for one in {id(one): one for one in tensors_of(state)}.values())
    if assembly.config.checkpoint.asynchronous:
        counter.peaks[SAVE].host += counter.saved  # the copy that is written while training goes on


def _update(
    assembly: Assembly, counter: LiveBytes, half: Half, trainer: Any, update: int, *, samples: bool, rests: Rests
) -> None:
    """One policy update; nothing of its batch stays, as in the loop."""
    with counter.phase(SAMPLE) if samples else nullcontext():
        scored = _collected(assembly, counter, update)
        counter.label(HOST, tensors_of(half.caches()))
    with counter.phase(ANNOTATE):
        annotated = trainer.annotate(scored)
        counter.label(BATCH, tensors_of(annotated), but=HOST)
        batch, _ = trainer.credit(annotated)
        counter.label(BATCH, tensors_of(batch), but=HOST)
        del annotated
    with phases_of_updates(counter, trainer.groups, rests):
        trainer.update(batch, update)
    with counter.phase(PUBLISH):
        trainer.publish(update)


def rollout_phases(assembly: Assembly, counter: LiveBytes, half: Half) -> None:
    """What a process of the pool ``rollout`` does."""
    _loaded(assembly, counter, half, brief=True, trains=False)
    roles, share = assembly.roles, assembly.config.pools.rollout
    spare: dict[str, Tensor] = {}  # held beside what samples
    with counter.phase(RECEIVE, BUFFERS):
        for full in (True, False) if not assembly.has_separate_engine else ():
            # all weights come once, and then what training changes; where vLLM samples, the network itself takes them
            spare.clear()
            spare |= {name: torch.empty_like(value) for name, value in roles.sampler_weights(full=full).items()}
        counter.received(sum(map(counter.size_of, roles.sampler_weights(full=False).values())))  # after every update
    half.again()
    with counter.phase(SAMPLE):
        request = _request(assembly, 1)
        _ = assembly.rollout_worker.generate(max(split(request, share.size if share else 1), key=len))
        counter.label(HOST, tensors_of(half.caches()))


def _loaded(
    assembly: Assembly, counter: LiveBytes, half: Half, *, brief: bool, trains: bool = True, rests: Rests = RESTS
) -> Any:
    config = assembly.config
    rewards = {label: at_hand(reward) for label, reward in config.rewards.items()}
    # where groups that are all alike are replaced, one is: as many samples as can be wait beside a further batch
    filtered = config.rollout.filter_groups
    again = config.online and filtered is not None and filtered.max_num_gen_batches > 1
    assembly.scorer = FixedScores(  # type: ignore[assignment]
        rewards, config.mixing, alike=config.sampled_per_prompt if again else 0
    )
    _find_prompts(assembly, half)
    # what a worker samples with is converted on its way to the GPU, and what is quantised a layer after the other
    mapped = assembly.ranks.size > 1 or not trains or config.model.quantization is not None
    if mapped:
        _map_files(assembly, counter)
    with counter.phase(LOAD, WEIGHTS):
        roles = assembly.roles
        counter.label(WEIGHTS, (one for part in half.parts() for one in (*part.parameters(), *part.buffers())))
        shards = roles.shards.networks.values()
        counter.label(rests.shards, (weight for one in shards for weight in one.parameters.values()))
        trainer = assembly.workers if trains else None
        if trains and assembly.ema is not None:
            counter.label(rests.average, assembly.ema.average.values())
    if mapped:
        counter.peaks[LOAD].host = 0  # pages of files, which the kernel takes back
    if brief:
        half.shorten()
        trainer = None if trainer is None else BriefTrainer.of(trainer, counter, rests)
    return trainer


def _map_files(assembly: Assembly, counter: LiveBytes) -> None:
    """Have networks lie on no GPU until they are sharded, placed or quantised: their files are mapped, and not read."""
    load = assembly.load_roles

    def mapped() -> Any:
        with counter.phase(LOAD, HOST):
            return load()

    vars(assembly)["load_roles"] = mapped


def _find_prompts(assembly: Assembly, half: Half) -> None:
    """Use the prompts of the run, or made-up ones where they are not on this machine."""
    try:
        _ = assembly.train_prompts, assembly.val_prompts
    except (UserError, OSError):
        config = assembly.config
        found = half.data(config.data.train_batch_size * config.batches_per_update)
        vars(assembly).update(found, val_prompts=found["train_prompts"][: config.validation.max_prompts])


def _request(assembly: Assembly, update: int) -> RolloutRequest:
    found: list[RolloutRequest] = []

    def asked(request: RolloutRequest) -> Any:
        found.append(request)
        raise _Asked

    try:
        assembly.prompt_schedule.batch(asked, update, update - 1)
    except _Asked:
        return found[0]
    raise AssertionError("nothing was requested")


class _Asked(Exception):
    """A request is known."""


def _collected(assembly: Assembly, counter: LiveBytes, update: int) -> Any:
    """The batch of an update, as the rank that samples most has it before it annotates."""
    ranks = assembly.ranks
    if ranks.size == 1 or not assembly.config.online:
        scored = assembly.source.collect(update)
        counter.label(BATCH, tensors_of(scored), but=HOST)
        return scored
    parts = split(_request(assembly, update), ranks.rows.size)
    own = assembly.generate(max(parts, key=len))
    answered = ranks.context.gather(own)[0]  # of ranks that drew the same the first one answers, and all learn from it
    own = answered if own is None else own
    # samples of all ranks travel through the memory of their machines
    counter.label(HOST, tensors_of(own))
    # groups of other ranks are others: what is done once for each is done for all of them
    groups = int(own.group.max()) + 1
    return join([replace(own, group=own.group + rank * groups) for rank in range(len(parts))])


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in batches, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for one in value:
            yield from tensors_of(one)
