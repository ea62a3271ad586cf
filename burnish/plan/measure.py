"""The phases of a run, one after the other as in training, each under the counter, on as few samples as fill a batch.

What is large because there are many samples is counted for all of them (``LiveBytes.times``), and an update's first
micro-batch stands for the others.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from burnish.config.hardware import NODE
from burnish.evaluation.suite import read_suite_prompts, suites_of
from burnish.plan.counter import (
    AVERAGE,
    BATCH,
    BETWEEN,
    BUFFERS,
    GRADIENTS,
    HOST,
    INSIDE,
    OPTIMIZER,
    SHARDS,
    STORED,
    WEIGHTS,
    LiveBytes,
    tensors_of,
)
from burnish.plan.fakes import Pretending
from burnish.plan.made_up import FixedScores, made_up_prompts
from burnish.plan.repeats import repeat_blocks
from burnish.rollout.sources import join, split
from burnish.tasks import Assembly
from burnish.tasks.evaluate import Evaluation
from burnish.training.optimizer import ParameterGroup
from burnish.training.trainer import Trainer, mini_batches
from burnish.types.batch import Batch
from burnish.utils.errors import UserError
from burnish.utils.terminal import without_collecting

LOAD, RECEIVE, SAMPLE, LOGPROBS = "load", "receive", "sample", "log-probs"
UPDATE, BACKWARD, STEP = "update, forward", "update, backward", "update, optimizer"
VALIDATE, SYNC, SAVE = "validate", "sync weights", "save"
BASELINE = "baseline"  # the untrained model is evaluated with guidance
SCORE = "score"  # in a pool of its own


class Half:
    """What a task's forecast has of its own."""

    # a context of a run, around all that has no values, in which models take over what only values tell
    without_values: Callable[..., AbstractContextManager[Any]]
    prepare: Callable[[], None]  # has what is done many times alike done once
    learned_at_once: Callable[[int], float]  # prompts with so many rows each that fill a micro-batch
    draw: Callable[[Any], None]  # samples the first batch of a job
    bucket = 0  # bytes that weights are sent through to another engine on the same GPU

    def __init__(self, assembly: Any, counter: LiveBytes, pretending: Pretending, *, samples: bool = True) -> None:
        """Take over an assembly of which nothing was used yet.

        Args:
            assembly: of the run.
            counter: which is active.
            pretending: which is active.
            samples: whether this process samples what is learned from.
        """
        self.assembly, self.counter, self.pretending, self.samples = assembly, counter, pretending, samples
        self._given = assembly.config.rollout.filter_groups, assembly.config.data.train_batch_size

    def made_up(self, count: int) -> dict[str, Any]:
        """Attributes of an assembly that are made up where the data of the run is not at hand: train_prompts first."""
        return {"train_prompts": made_up_prompts(count)}

    def parts(self) -> Iterator[nn.Module]:
        """Everything that has weights."""
        yield from self.assembly.roles._networks.values()

    def before_sharding(self) -> None:
        """Do what a run does before ranks share its networks out."""

    def begin(self) -> None:
        """Sizes of batches may be others than before: forget what was counted and drawn with those."""
        self.counter.restart(LOAD)
        config = self.assembly.config
        config.rollout.filter_groups, config.data.train_batch_size = self._given  # see ``take_few``
        for name in ("source", "prompt_schedule", "offline_times"):  # whose streams have gone on, or first prompt
            vars(self.assembly).pop(name, None)

    def gathered(self) -> Any:
        """Which networks this rank has in full for a while; of others every call gathers those of a block."""
        return tuple((one.is_gathered, one.is_full) for one in self.assembly.roles.shards.networks.values())

    def caches(self) -> Any:
        """Tensors that are kept from one batch to the next, in CPU memory."""
        return ()

    def turn_to(self, evaluation: Evaluation) -> None:
        """A suite is next."""

    def validate(self) -> None:
        """Sample the first batch of the held-out prompts and of every suite, each as large as any that follows."""
        assembly = self.assembly
        self.draw(held_out(assembly))
        for suite in suites_of(assembly.config):
            prompts: Any = []
            with suppress(UserError, OSError):
                prompts = read_suite_prompts(suite)
            prompts = prompts or self.made_up(int(assembly.config.rollout.batch_size))["train_prompts"]
            evaluation = assembly.suite_runner(assembly, suite, prompts)
            self.turn_to(evaluation)
            self.draw(evaluation.job(suite.n).select(slice(0, evaluation.unit * suite.n)))


def prime(trainer: Trainer, counter: LiveBytes, update: int) -> None:
    """Stand before ``update``: a step with gradients of zero makes the optimizers' states."""
    for group in () if trainer.optimizer_steps else trainer.groups:
        for weight in group.parameters.values():
            weight.grad = torch.zeros_like(weight)
        with counter.made_as(OPTIMIZER):
            group.step()
        group.zero_grad()
    trainer.optimizer_steps = trainer.roles.optimizer_steps = 1
    trainer.roles.stepped()
    trainer.algorithm.after_update(trainer.roles, update - 1)
    trainer.sync_weights(update - 1)


def learn(
    trainer: Trainer, counter: LiveBytes, mini: Batch, update: int, *, more: bool
) -> tuple[int, Mapping[str, Counter[str]]]:
    """An optimizer step that learns from the first micro-batch of a mini-batch, and from it again if there are others.

    Args: ``more`` says that this one is not the only one, whatever the mini-batch has here.

    Returns:
        How many micro-batches the mini-batch has, and by phase the work of all but the last that was learned.
    """
    every, earlier = trainer._micro_batches, dict[str, Counter[str]]()
    count = sum(1 for _ in every(mini))

    def few(mini: Batch) -> Iterator[tuple[Batch, float, bool]]:
        first, weight, _ = next(every(mini))
        if more or count > 1:
            yield first, weight, False
            earlier.update({name: Counter(peak.work) for name, peak in counter.peaks.items()})
        yield first, weight, True

    with patch.object(trainer, "_micro_batches", few), phases_of_updates(counter, trainer.groups):
        trainer._step(mini, update)
    return count, earlier


def train_phases(assembly: Assembly, counter: LiveBytes, half: Half) -> int:
    """What a process of the pool ``train`` does up to its second policy update, up to saving.

    Args:
        assembly: of a run; its networks are loaded.
        counter: which is active.
        half: the task's.

    Returns:
        Bytes that it writes of a checkpoint.
    """
    config, trainer, samples = assembly.config, assembly.workers, half.samples
    update = max(2, *(group.first_update for group in trainer.groups))
    prime(trainer, counter, update)
    if config.reference_guidance is not None:
        with counter.phase(BASELINE), assembly.trained_weights():
            half.draw(held_out(assembly, config.reference_guidance))
        baseline = counter.peaks[BASELINE]
        baseline.total -= baseline.parts.pop(OPTIMIZER, 0)  # which has no state yet
    filtered = config.rollout.filter_groups
    times = take_few(assembly, counter, half)
    with counter.phase(SAMPLE) if samples else nullcontext():
        scored = collect(assembly, counter, update)
        counter.label(STORED, half.caches())
        if samples and filtered is not None and filtered.max_num_gen_batches > 1:
            with counter.made_as(BATCH):  # all but a prompt of one batch wait beside another
                _ = [one.clone() for one in tensors_of(scored)]
    with counter.phase(LOGPROBS):
        annotated = trainer.compute_logprobs(scored)
        counter.label(BATCH, annotated)
        batch, _ = trainer.compute_advantages(annotated)
        counter.label(BATCH, batch)
        del annotated
    rows, options = len(batch) * times, trainer.options
    mini = next(mini_batches(batch, options, trainer.seed, update))
    size = options.mini_batch_size or rows
    if options.mini_batch_size is None:
        counter.label(BATCH, mini)
    few = mini.select(range(min(len(mini), assembly.roles.micro_batch_size * assembly.ranks.rows.size)))
    if next(trainer._micro_batches(few), None) is not None:  # else nothing is learned from the rows of this rank
        mini = few
    count, earlier = learn(trainer, counter, mini, update, more=size > len(mini))
    steps = options.epochs * math.ceil(rows / size)
    micro_batches = options.epochs * rows * count / len(mini)
    exchanged = {name: {kind: peak.work[kind] for kind in (INSIDE, BETWEEN)} for name, peak in counter.peaks.items()}
    # weights are gathered once for samples, and where they stay for log-probs, too
    kept = any(one.keeps for one in assembly.roles.shards.networks.values())
    counter.repeat_work(SAMPLE, times, exchanged.get(SAMPLE))
    counter.repeat_work(LOGPROBS, times, exchanged[LOGPROBS] if kept else None)
    for name in (UPDATE, BACKWARD):  # gradients may be summed with the last micro-batch of a step alone
        counter.repeat_work(name, steps, earlier.get(name), micro_batches - steps)
    counter.repeat_work(STEP, steps)
    del batch, mini
    with counter.phase(SYNC, BUFFERS):
        bucket = torch.empty(half.bucket, dtype=torch.uint8)
        trainer.sync_weights(update)
    del bucket
    del scored
    if config.validates:
        with counter.phase(VALIDATE), assembly.trained_weights():
            half.validate()
    with counter.phase(SAVE):
        saved = 0
        for one in {id(one): one for one in tensors_of(trainer.state_dict())}.values():
            local: Any = getattr(one, "_local_tensor", one)  # this rank's shard
            saved += local.nbytes
    if config.checkpoint.asynchronous:
        counter.peaks[SAVE].host += saved  # the copy that is written while training goes on
    return saved


def rollout_phases(assembly: Assembly, counter: LiveBytes, half: Half) -> int:
    """What a process of the pool ``rollout`` does; it writes nothing of a checkpoint."""
    roles, processes = assembly.roles, assembly.config.pools.rollout.size
    with counter.phase(RECEIVE, BUFFERS):
        # held beside what samples; where vLLM does, the network itself takes them
        spare: list[Tensor] = []
        for full in () if assembly.has_separate_engine else (True, False):  # after the first time what changes alone
            spare = [torch.empty_like(one) for one in roles.sampler_weights(full=full).values()]
        spare.append(torch.empty(half.bucket, dtype=torch.uint8))
        where = INSIDE if assembly.config.pools.train.size + processes <= NODE else BETWEEN
        sent = sum(one.nbytes for one in roles.sampler_weights(full=False).values())
        counter.peaks[RECEIVE].work[where] += sent
    times = take_few(assembly, counter, half, processes)
    with counter.phase(SAMPLE):
        request = assembly.prompt_schedule.request(1, 0, Counter())
        _ = assembly.rollout_worker.generate(max(split(request, processes), key=len))
        counter.label(STORED, half.caches())
    counter.repeat_work(SAMPLE, times)
    del spare
    return 0


@without_collecting()
def load(assembly: Assembly, counter: LiveBytes, half: Half, *, trains: bool = True) -> None:
    """Load what a process has, with stand-ins for scores, and for prompts where they are not on this machine."""
    config = assembly.config
    assembly.scorer = FixedScores(config)
    try:
        _ = assembly.train_prompts, assembly.val_prompts
    except (UserError, OSError):
        made_up = half.made_up(config.records)
        vars(assembly).update(made_up, val_prompts=made_up["train_prompts"][: config.validation.max_prompts])
    # networks lie on no GPU until they are sharded, placed or quantised: their files are mapped, and not read
    mapped = assembly.ranks.size > 1 or not trains or config.model.quantization is not None
    if mapped:
        vars(assembly)["load_roles"] = counter.phase(LOAD, HOST)(assembly.load_roles)
    with counter.phase(LOAD, WEIGHTS):
        roles = assembly.roles
        counter.label(WEIGHTS, [(*part.parameters(), *part.buffers()) for part in half.parts()])
        counter.label(SHARDS, [one.parameters for one in roles.shards.networks.values()])
        if trains:
            half.before_sharding()
            _ = assembly.workers
        if trains and assembly.ema is not None:
            counter.label(AVERAGE, assembly.ema.average)
    if mapped:
        counter.peaks[LOAD].host = 0  # pages of files, which the kernel takes back
    for part in half.parts():
        repeat_blocks(part, counter)
    gc.collect()
    gc.freeze()  # networks are never garbage, and would be looked through again and again


def take_few(assembly: Assembly, counter: LiveBytes, half: Half, processes: int = 0) -> float:
    """Have batches of as few prompts as fill what is done at once; how many times as many the run has.

    Args:
        assembly: of the run, with its networks.
        counter: of what the others hold.
        half: the task's.
        processes: that share out the prompts; 0 is the ranks.
    """
    config, processes = assembly.config, processes or assembly.sampling_ranks.size
    batches, full = config.batches_per_update, config.data.train_batch_size
    sampled = config.rollout.batch_size / config.sampled_per_prompt if config.online else 1
    learned = half.learned_at_once(max(config.samples // config.records, 1))
    groups = math.ceil(min(max(learned, sampled), config.records / processes)) * processes
    config.data.train_batch_size = min(math.ceil(groups / batches), full)
    config.rollout.filter_groups = None
    times = float(full / config.data.train_batch_size)
    counter.times = {BATCH: times, STORED: times}
    return times


def collect(assembly: Assembly, counter: LiveBytes, update: int) -> Any:
    """The batch of an update, as the rank that samples most has it before it annotates."""
    ranks = assembly.ranks
    if ranks.size == 1 or not assembly.config.online:
        scored = assembly.source.rollout(update)
        counter.label(BATCH, scored)
        return scored
    parts = split(assembly.prompt_schedule.request(update, update - 1, Counter()), assembly.sampling_ranks.size)
    own = assembly.generate(max(parts, key=len))
    answered = ranks.context.gather(own)[0]  # of ranks that drew the same the first one answers, and all learn from it
    own = answered if own is None else own
    counter.label(STORED, own)  # samples of all ranks travel through the memory of their machines
    # groups of other ranks are others: what is done once for each is done for all of them
    groups = int(own.group.max()) + 1
    return join([replace(own, group=own.group + rank * groups) for rank in range(len(parts))])


def held_out(assembly: Assembly, guidance: float | None = None) -> Any:
    """The first samples of a validation on the rank that has most of them, as many as are made at once."""
    config = assembly.config
    job = assembly.evaluation(assembly).job(config.validation.n, guidance)
    prompts = len(job.prompts) // config.validation.n
    own = -(-prompts // assembly.sampling_ranks.size) * config.validation.n
    return job.select(slice(0, min(own, config.rollout.batch_size)))


@contextmanager
def phases_of_updates(counter: LiveBytes, groups: Iterable[ParameterGroup]) -> Iterator[None]:
    """Tell forward passes, backward passes and steps of optimizers apart, and gradients from activations."""

    def backward(loss: Tensor) -> None:
        # unlike ``Tensor.backward``, modes see what is computed again in it: functions are handed to one only
        with counter.phase(BACKWARD):
            _engine_run_backward(
                (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )

    stepping = ExitStack()
    with ExitStack() as hooks:
        for weight in (weight for group in groups for weight in group.parameters.values()):
            handle = weight.register_post_accumulate_grad_hook(lambda one: counter.label(GRADIENTS, one.grad))
            hooks.callback(handle.remove)
        enter = register_optimizer_step_pre_hook(
            lambda *_: stepping.enter_context(counter.phase(STEP, OPTIMIZER)) and None
        )
        leave = register_optimizer_step_post_hook(lambda *_: stepping.close())
        hooks.callback(enter.remove)
        hooks.callback(leave.remove)
        hooks.enter_context(patch.object(Tensor, "backward", backward))
        hooks.enter_context(counter.phase(UPDATE))
        yield
