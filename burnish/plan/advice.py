"""Options that make a run smaller, tried by forecasting it again, the cheapest in speed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from burnish.config import RunConfig
from burnish.config.batches import smallest, with_sizes
from burnish.plan.forecast import Forecast, forecast
from burnish.plan.measure import BACKWARD, BASELINE, SAMPLE, UPDATE, VALIDATE
from burnish.utils.errors import UserError

DRAWS, READS = "text-to-image", "image-text-to-text"
MADE = (BASELINE, SAMPLE, VALIDATE)
LEARNED = (UPDATE, BACKWARD)


@dataclass(frozen=True)
class Remedy:
    """An option that needs less memory, and what it costs."""

    option: str
    cost: str
    phases: tuple[str, ...] = ()  # that it helps in; none is all
    ranks: bool = False  # it has an effect on several ranks only
    task: str = ""  # that it is for; "" is any

    @property
    def name(self) -> str:
        return self.option.partition("=")[0]


REMEDIES = (  # in the order of what they cost in speed
    Remedy("trainer.micro_batch_size=1", "smaller micro-batches: a little speed where GPUs are not filled", LEARNED),
    Remedy("rollout.batch_size=1", "smaller batches of samples: a little speed", MADE, task=DRAWS),
    Remedy("rollout.batch_size=64", "fewer responses are decoded at once: slower sampling", MADE, task=READS),
    Remedy("rollout.batch_size=16", "the same, and slower", MADE, task=READS),
    Remedy("rollout.vllm.sleep=true", "vLLM gives its memory back while the policy learns: a copy of its weights"),
    Remedy("model.vae_tiling=true", "pictures are decoded in tiles: hardly any speed", MADE),
    Remedy("model.offload=true", "text encoders and VAE rest in CPU memory: a copy of each before it is used"),
    Remedy("sharding.gather=compute", "weights are gathered in model.dtype: faster, other rounding", (), ranks=True),
    Remedy("model.gradient_checkpointing=true", "about a third more computing in updates", LEARNED),
    Remedy("model.lora={rank: 32}", "only adapters learn: another result, and quicker updates"),
    Remedy("optimizer.offload=true", "the optimizer steps on the CPU: slow updates"),
)


@dataclass(frozen=True)
class Tried:
    """Options, and what the run would need with them."""

    options: tuple[str, ...]
    cost: str  # of the last one
    needs: int
    fits: bool


def remedies(
    read: Callable[[Sequence[str]], RunConfig], first: Forecast, memory: int, *, more: Sequence[Remedy] = REMEDIES
) -> Iterator[Tried]:
    """Try one option after the other, keep those that help, and end when the run fits.

    Args:
        read: the configuration of the run with further options.
        first: its forecast as it is, with the smallest size of every batch that is auto.
        memory: bytes of a GPU.
        more: what is tried.
    """
    kept: tuple[str, ...] = ()
    now, low = first, smallest(read(()))
    for remedy in more:
        if remedy.name in low:
            continue  # nothing is smaller
        if now.fits(memory) or any(pool.vllm is not None and pool.vllm.complaint(memory) for pool in now.pools):
            return  # what a vLLM without room needs is said where that is found
        phases = {pool.highest[0] for pool in now.pools if pool.needs_of(memory) > memory}
        if remedy.phases and phases.isdisjoint(remedy.phases):
            continue
        if remedy.task and read(()).task != remedy.task:
            continue
        if remedy.ranks and max(pool.processes for pool in now.pools) == 1:
            continue
        options = (*kept, remedy.option)
        try:
            smaller = read(options)
            if smaller == read(kept):
                continue
            found = forecast(with_sizes(smaller, low))
        except UserError:
            continue  # the run has no such option, or not beside its others
        yield Tried(options, remedy.cost, found.needs_of(memory), found.fits(memory))
        if found.needs_of(memory) < now.needs_of(memory):
            kept, now = options, found
