"""What every process of a run will hold, phase by phase, found by running its own code on tensors without values."""

from __future__ import annotations

import gc
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from burnish.config import RunConfig
from burnish.config.batches import with_sizes
from burnish.config.hardware import Speed
from burnish.config.yaml_text import parse
from burnish.diffusion.config import FlowConfig
from burnish.evaluation.suite import check_task, suites_of
from burnish.options.cluster import PoolOptions
from burnish.plan.counter import (
    AVERAGE,
    BETWEEN,
    GRADIENTS,
    HOST,
    INSIDE,
    KERNELS,
    MOVED,
    OPERATIONS,
    OPTIMIZER,
    REWARDS,
    SHARDS,
    LiveBytes,
    Peak,
    Tell,
    shown,
    silent,
)
from burnish.plan.fakes import Pretending, cuda_precision, pretend_ranks, stored_in_fewer_bits
from burnish.plan.measure import (
    BACKWARD,
    BASELINE,
    LOGPROBS,
    RECEIVE,
    SAMPLE,
    SCORE,
    STEP,
    SYNC,
    UPDATE,
    VALIDATE,
    Half,
    load,
    rollout_phases,
    train_phases,
)
from burnish.plan.published import FOLDER, located, published
from burnish.registry import Choice
from burnish.rewards.base import AnyReward
from burnish.tasks import assemble
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from burnish.utils.terminal import loading_pytorch
from burnish.utils.weights import without_weights

if TYPE_CHECKING:
    from burnish.plan.language import VllmForecast

OVERHEAD = 3 << 29  # bytes that CUDA, its libraries and NCCL take before any tensor: 1.5 GiB
TIMED = (RECEIVE, SAMPLE, LOGPROBS, UPDATE, BACKWARD, STEP, SYNC)  # phases of every update
AWAKE = (BASELINE, SAMPLE, VALIDATE, SYNC)  # phases in which a vLLM that sleeps does not
FRAGMENTS = 0.05  # of the peak that the allocator can't use


def seconds_of(work: Mapping[str, float], speed: Speed) -> tuple[float, str]:
    """How long a GPU takes at least for the work of a phase, and what bounds it."""
    times = {
        "operations": work[OPERATIONS] / (speed.tflops * 1e12),
        "memory": work[MOVED] / (speed.bandwidth * 1e9),
        "launches": work[KERNELS] * speed.launch * 1e-6,
        "network": work[INSIDE] / (speed.nvlink * 1e9) + work[BETWEEN] / (speed.network * 1e9),
    }
    name = max(times, key=lambda one: times[one])
    return times[name], name


@dataclass(frozen=True)
class PoolForecast:
    """What one process of a pool holds."""

    name: str
    processes: int
    phases: Mapping[str, Peak]
    saved: int  # bytes that it writes of a checkpoint
    uncounted: tuple[str, ...] = ()  # options of rewards with networks on its GPU whose size nobody knows here
    vllm: VllmForecast | None = None  # of its vLLM, where it samples with one
    sharing: int = 1  # processes of the pool that may be on one GPU: each asks for a fraction of it
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by phase, of an update; not of vLLM
    weights: tuple[int, int] = (0, 0)  # of the networks that ranks share: learned and frozen ones

    @property
    def highest(self) -> tuple[str, Peak]:
        """The phase that holds most."""
        return max(self.phases.items(), key=lambda item: item[1].total)

    def needs_of(self, memory: int) -> int:
        """Bytes that are needed of a GPU of so many bytes, with what no forecast sees; vLLM takes a part of it."""
        alone = 0 if self.vllm is None else self.sharing * self.vllm.takes(memory)
        return max(alone, *(self.needs_in(phase, memory) for phase in self.phases))

    def needs_in(self, phase: str, memory: int) -> int:
        """The same in one of its phases."""
        return self.sharing * (needed(self.phases[phase].total) + self._beside(phase, memory))

    def can_fit(self, memory: int) -> bool:
        """Whether what is sure to be needed fits: peaks alone, and a cache for vLLM."""
        starts = self.vllm is None or not self.vllm.complaint(memory)
        held = max(peak.total + self._beside(phase, memory) for phase, peak in self.phases.items())
        return starts and self.sharing * held <= memory

    def why(self, memory: int) -> str:
        """What it needs of a GPU of so many bytes, and what for."""
        if self.vllm is not None and (complaint := self.vllm.complaint(memory)):
            return f"{complaint} (pool {self.name})"
        phase, peak = self.highest
        if self.vllm is not None and not peak.total:
            return f"vLLM takes {shown(self.vllm.takes(memory))} of each GPU of pool {self.name}"
        largest = max(peak.parts, key=lambda name: peak.parts[name])
        shared = 0 if self.vllm is None or not self.vllm.shares else self.vllm.takes(memory)
        beside = f", beside {shown(shared)} of vLLM" if shared else ""
        who = f"{self.sharing} processes of pool {self.name} on one GPU" if self.sharing > 1 else ""
        return (
            f"{f'{who} need' if who else f'a process of pool {self.name} needs'} {shown(self.needs_of(memory))}, in "
            f"{phase!r}, most of it {largest} ({shown(peak.parts[largest])}){beside}"
        )

    def _beside(self, phase: str, memory: int) -> int:
        """What a vLLM on the same GPU holds in a phase."""
        if self.vllm is None or not self.vllm.shares or (self.vllm.sleeps and phase not in AWAKE):
            return 0
        return self.vllm.takes(memory)


@dataclass(frozen=True)
class Forecast:
    """What every pool of a run holds."""

    pools: tuple[PoolForecast, ...]
    beside: tuple[str, ...] = ()  # what takes memory, too, and is not counted

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is not counted, in words."""
        labels = sorted({label for pool in self.pools for label in pool.uncounted})
        return (*(f"the network of {label}, whose size is not known" for label in labels), *self.beside)

    def needs_of(self, memory: int) -> int:
        """Bytes that are needed of GPUs of so many bytes."""
        return max(pool.needs_of(memory) for pool in self.pools)

    def fits(self, memory: int) -> bool:
        """Whether the run fits GPUs of so many bytes, with room for what no forecast sees."""
        return all(pool.can_fit(memory) and pool.needs_of(memory) <= memory for pool in self.pools)


def forecast(config: RunConfig, tell: Tell = silent) -> Forecast:
    """Run two policy updates on fake tensors, as the first process of every pool; see ``Forecasts``."""
    with closing(Forecasts(config, tell)) as forecasts:
        return forecasts({})


class Forecasts:
    """Forecasts of a run with one size or another of what is auto. Networks are loaded once for each of their layouts.

    Whoever is done with them closes them.
    """

    def __init__(self, config: RunConfig, tell: Tell = silent) -> None:
        """Load nothing yet.

        Args:
            config: of the run. Of its model only the configuration files are read.
            tell: is told which phase of which pool comes next.

        Raises:
            UserError: the model's configuration is not on this machine, or the forecast would be wrong.
        """
        self.config, self._tell = config, tell
        self._known: dict[Any, Forecast] = {}  # by the sizes
        self._layout: Any = None  # of the networks that are loaded, and who has them
        self._processes: list[Process] = []
        self._until_closed = ExitStack()
        self._ranks = config.pools.train.size if config.runtime == "ray" else 1
        if self._ranks == 1 and config.sharding.offload:
            raise UserError(
                "sharding.offload is true in a single process, and a forecast can't tell what is on the GPU then; "
                "leave it out, or forecast several processes (runtime=ray pools.train.processes=2)"
            )
        for suite in suites_of(config):
            check_task(suite, config.task)

    def __call__(self, sizes: Mapping[str, Any]) -> Forecast:
        """The forecast with these sizes."""
        key = tuple(sizes.items())
        if key not in self._known:
            config = with_sizes(self.config, sizes)
            if config.sharding != self._layout:
                self.close()
                self._load(config)
            measured = [process.measure(sizes) for process in self._processes]
            beside = [text for text, is_there in (
                ("the process of checkpoint.export, which has a copy of the model in CPU memory",
                 config.checkpoint.export is not None),
                ("what compiled blocks keep otherwise (model.compile)", config.model.compile),
            ) if is_there]  # fmt: skip
            self._known[key] = Forecast((*measured, *_judges(config)), tuple(beside))
        return self._known[key]

    def close(self) -> None:
        """Let go of what is loaded."""
        self._until_closed.close()
        self._processes, self._layout = [], None

    def _load(self, config: RunConfig) -> None:
        gc.freeze()  # what libraries hold is never garbage, and would be looked through again and again
        self._until_closed.callback(gc.unfreeze)
        folder = self._until_closed.enter_context(TemporaryDirectory())
        ranks = self._until_closed.enter_context(pretend_ranks(self._ranks))
        found, apart = located(config, Path(folder)), config.pools.rollout if config.runtime == "ray" else None
        self._processes = [Process(found, "train", self._ranks, ranks, self._tell, samples=apart is None)]
        if apart is not None:
            self._processes.append(Process(found, "rollout", apart.size, SINGLE_RANK, self._tell))
        self._layout = config.sharding


def _judges(config: RunConfig) -> Iterator[PoolForecast]:
    """The pool that scores, if there is one and it has networks on GPUs."""
    pool = config.pools.reward if config.runtime == "ray" else None
    always, scoring, unknown = loaded_by({"rewards": config.rewards}, config.scoring.processes)
    if pool is not None and (always or scoring or unknown):
        phases = {SCORE: Peak(always + scoring, {REWARDS: always + scoring})}
        yield PoolForecast("reward", pool.size, phases, 0, unknown, sharing=sharing(pool))


def sharing(pool: PoolOptions | None) -> int:
    """How many processes of a pool are on one GPU at most; 1 where there are no pools."""
    return min(pool.processes, int(1 / pool.gpus)) if pool is not None and pool.gpus and pool.gpus < 1 else 1


class Process:
    """The first process of a pool on tensors without values, as the first of its ranks: its networks are loaded."""

    def __init__(
        self, config: RunConfig, name: str, size: int, ranks: Ranks, tell: Tell = silent, *, samples: bool = True
    ) -> None:
        """Load them.

        Args:
            config: of a run whose models are ``located``.
            name: of the pool: train, or rollout.
            size: processes of the pool.
            ranks: those of them that train, else a single one; their collectives do nothing.
            tell: as of ``forecast``.
            samples: whether it samples what is learned from.
        """
        self.name, self.size, self.samples, self.trains = name, size, samples, name == "train"
        self.counter, self.pretending = LiveBytes(lambda phase: tell(f"{phase} of pool {name}")), Pretending()
        self.on_host = not self.trains and config.sampler_config is not config
        apart = config.runtime == "ray" and config.pools.rollout is not None
        own = config.sampler_config if not self.trains else config.trainer_config if apart else config
        self.config = config = deepcopy(own)
        sharding = config.sharding
        # these are refused on a CPU, where a forecast runs; it counts what they move apart
        shards = sharding.offload and size > 1
        in_host = {
            SHARDS: shards, GRADIENTS: shards, OPTIMIZER: config.optimizer.offload or shards,
            AVERAGE: shards or (config.ema is not None and config.ema.offload),
        }  # fmt: skip
        self.counter.rests |= {name: HOST for name, rests in in_host.items() if rests}
        for section in (config.ema, sharding, config.optimizer):
            if section is not None:
                section.offload = False
        config.model.compile = False  # compilers look at values
        self.ranks = ranks.in_contexts(sharding.context_parallel, sharding.tensor_parallel)
        with self.pretended():
            self.assembly = assemble(config, self.ranks, only_samples=not self.trains)
            self.half = half_of(config)(self.assembly, self.counter, self.pretending, samples=samples)
            load(self.assembly, self.counter, self.half, trains=self.trains)
            self.half.prepare()

    @contextmanager
    def pretended(self) -> Iterator[None]:
        """A context in which tensors have no values, and operations are counted."""
        with ExitStack() as contexts:
            # nothing that the run's own code has to say is true of values that nobody knows
            contexts.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.ERROR)  # PyTorch reports what a pipeline tries and gives up as an error
            contexts.enter_context(warnings.catch_warnings(action="ignore"))
            shared = self.ranks.size > 1
            contexts.enter_context(half_of(self.config).without_values(self.config, self.counter, shared=shared))
            counted = self.pretending.active(self.counter)
            for context in (without_weights(), stored_in_fewer_bits(), counted, cuda_precision()):
                contexts.enter_context(context)
            yield

    def measure(self, sizes: Mapping[str, Any]) -> PoolForecast:
        """What it holds with batches of these sizes."""
        config, counter, assembly, vllm = self.config, self.counter, self.assembly, None
        for option, size in sizes.items():
            section, _, name = option.partition(".")
            setattr(getattr(config, section), name, size)
        with self.pretended():
            self.half.begin()
            saved = (train_phases if self.trains else rollout_phases)(assembly, counter, self.half)
            every = [one for network in assembly.roles._networks.values() for one in network.parameters()]
            learned, frozen = (sum(one.numel() for one in every if one.requires_grad is on) for on in (True, False))
            if assembly.has_separate_engine:
                from burnish.plan.language import vllm_forecast

                vllm = vllm_forecast(assembly.config, assembly.roles.model, apart=not self.trains)
        phases = dict(counter.peaks)
        if self.on_host:
            phases = {phase: Peak(host=peak.total + peak.host) for phase, peak in phases.items()}
        always, scoring, unknown = scorers_of(config, samples=self.samples, trains=self.trains)
        for name, peak in phases.items():  # they score what is sampled meanwhile
            held = always + (scoring if name in (SAMPLE, VALIDATE, BASELINE) else 0)
            parts = peak.parts | ({REWARDS: held} if held else {})
            phases[name] = replace(peak, total=peak.total + held, parts=parts)
        timed = set(TIMED) - ({SAMPLE} if vllm else set())
        return PoolForecast(
            self.name, self.size, phases, saved, unknown, vllm,
            sharing(config.pools.by_name().get(self.name) if config.runtime == "ray" else None),
            {phase: peak.work for phase, peak in counter.peaks.items() if phase in timed},
            (learned, frozen),
        )  # fmt: skip


def half_of(config: RunConfig) -> type[Half]:
    """What a run's task has of its own. The other task's libraries are not imported."""
    kind: Any
    with loading_pytorch():  # before counting begins: libraries make tensors of their own
        if isinstance(config, FlowConfig):
            from burnish.plan.diffusion import GeneratorHalf as kind
        else:
            from burnish.plan.language import LanguageHalf as kind
    return kind  # type: ignore[no-any-return]


def needed(peak: int) -> int:
    """Bytes of memory that a GPU must have for a peak, with what no forecast sees."""
    return int(peak * (1 + FRAGMENTS)) + OVERHEAD


CONTEXT = 1 << 29  # bytes that CUDA takes in the process of the scorers: half a GiB
WIDTHS = {"float32": 4, "bfloat16": 2}
OWN = "environment.arguments"  # a section whose rewards are in the process that samples
FURTHER = ("clip",)  # options of rewards that name a network beside that of path


# what they take of the GPU: bytes of weights that rest there, and of their process; bytes of those that are there while
# samples are scored; and options of rewards whose weights nobody knows here
Scorers: TypeAlias = tuple[int, int, tuple[str, ...]]


def scorers_of(config: RunConfig, *, samples: bool, trains: bool) -> Scorers:
    """The scorers of one process, but those in a pool of their own.

    Args:
        config: of the run.
        samples: whether it samples what is learned from.
        trains: whether it trains, and so evaluates: then it scores held-out samples, and those of suites.
    """
    sections: dict[str, Mapping[str, AnyReward]] = {}
    pooled = config.runtime == "ray" and config.pools.reward is not None
    if not pooled and config.scored and (samples or (trains and (config.validates or config.scoring.probe))):
        sections["rewards"] = config.rewards
    if trains and config.validates:
        sections |= {f"suite {suite.name}: scorers": suite.scorers for suite in suites_of(config)}
    environment = getattr(config, "environment", None)
    drawn = environment.generators() if samples and environment is not None else ()
    sections[OWN] = {str(number): Choice("flow reward").made(one["reward"]) for number, one in enumerate(drawn)}
    return loaded_by(sections, config.scoring.processes)


def loaded_by(sections: Mapping[str, Mapping[str, AnyReward]], processes: int) -> Scorers:
    """What the networks of rewards take of the GPU of whoever scores by them.

    Args:
        sections: rewards by label, by the section that they are options of. Each has processes and networks of its own.
        processes: of the scorers; with none of their own they are in the run's.
    """
    always, scoring, unknown = 0, 0, list[str]()
    for section, rewards in sections.items():
        sizes = dict(_sizes(rewards))
        unknown += [f"{section}.{label}" for label, size in sizes.items() if size is None]
        # one process scores on a device, by one reward after the other
        away = [size or 0 for label, size in sizes.items() if rewards[label].put_away]
        always += sum(size or 0 for size in sizes.values()) - sum(away)
        always += CONTEXT if sizes and processes and section != OWN else 0
        scoring += max(away, default=0)
    return always, scoring, tuple(unknown)


def _sizes(rewards: Mapping[str, AnyReward]) -> Iterator[tuple[str, int | None]]:
    """Labels of rewards with networks on the GPU, and the bytes of these where they are known.

    Rewards that a run leaves out where their weights are not in the hub's cache count as if they were.
    """
    counting = {(one.name, vars(one).get("path")) for one in rewards.values() if not vars(one).get("if_cached")}
    seen = set()
    for label, reward in rewards.items():
        options: dict[str, Any] = vars(reward)
        network = options.get("path"), options.get("version"), options.get("dtype")
        watched_too = bool(options.get("if_cached")) and (reward.name, options.get("path")) in counting
        if not reward.has_weights or reward.device_name != "cuda" or network in seen or watched_too:
            continue  # which is loaded once, or left out
        seen.add(network)
        # those that others trained further are as large as what they began from
        counts = [_weights(str(options.get("path"))) or _weights(str(options.get("base")))]
        counts += [_weights(str(options[name])) for name in FURTHER if options.get(name) is not None]
        yield label, None if None in counts else int(sum(counts) * WIDTHS[options.get("dtype", "bfloat16")])  # type: ignore[arg-type]


@cache
def _weights(path: str) -> float | None:
    """Weights of a network by its name on the hub, or of one in a directory."""
    known = parse((FOLDER / "scorers.yaml").read_text(encoding="utf-8"))["models"]
    known |= {name: model.weights.get("") for name, model in published().items()}
    if path in known:
        return known[path]  # type: ignore[no-any-return]
    from safetensors import safe_open

    files: list[Any] = [safe_open(file, "pt") for file in sorted(resolve(path).glob("*.safetensors"))]
    shapes = [file.get_slice(name).get_shape() for file in files for name in file.keys()]  # noqa: SIM118
    return float(sum(map(math.prod, shapes))) or None
