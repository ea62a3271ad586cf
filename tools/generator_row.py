"""What Burnish makes of one pipeline class of diffusers, beside what diffusers alone makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from generator_alone import GUIDANCE, NEGATIVE, SEED, drawn_alone, job_of, seed_of, with_sound, without_noise
from tiny_calls import load as load_alone
from tiny_calls import media
from torch import Tensor, nn

from burnish import loop
from burnish.commands.export import write_weights
from burnish.config import load
from burnish.diffusion.engine import FlowEngine
from burnish.diffusion.options import RolloutOptions
from burnish.diffusion.pipeline.arguments import Arguments
from burnish.diffusion.pipeline.checks import distance
from burnish.models.modular import pipeline_class
from burnish.models.tiny import Tiny
from burnish.models.tiny.build import write
from burnish.tasks import Assembly, assemble
from burnish.types.samples import Sound
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache
from burnish.utils.weights import quietly

STEPS, TRAINED = 12, 4  # of the comparison, some of whose guidance begins at a sixth step, and of the updates
LOGPROB = "rollout_corr/logprob_abs_diff"
EXACT = 5e-4  # largest relative difference that is rounding
PROMPTS = ("a red fox in the snow", "two apples on the table")
FEWER = {"SanaSprintPipeline": 2, "LTX2DFRPipeline": 8}  # steps of pipelines that take no others by themselves
UNGUIDED = ("dreamlite-mobile", "ace-step-turbo")  # models that read no guidance, though their call takes one
OF_FILES = (
    "image",
    "images",
    "mask",
    "video",
    "video mask",
)  # kinds of inputs that come with a prompt; others are arguments
RUNS = {
    "flow_grpo": ["algorithm=flow_grpo", "steps=5"],
    "diffusion_nft": ["algorithm=diffusion_nft", "algorithm.train_timesteps=2", "steps=5"],
    "flow_grpo, all weights": ["algorithm=flow_grpo", "model.lora=null", "optimizer.lr=1e-3", "steps=2"],
}
GRPO, NFT, FULL = RUNS
REWARD = """
import numpy as np


def mean(samples, prompts):
    '''Of the numbers that an image, a clip or a sound consists of.'''
    return [float(np.mean(next((getattr(s, n) for n in ("frames", "samples") if hasattr(s, n)), s))) for s in samples]
"""


@dataclass(kw_only=True)
class Row:
    """What was found of one tiny pipeline. Differences are relative to the largest value."""

    name: str
    pipeline: str
    makes: str
    refused: str = ""
    """Why it can't be trained; nothing else is known then."""
    failed: str = ""
    """An error that tells the user nothing."""
    latents: float = math.nan
    """Final state of our deterministic sampler beside that of the pipeline's own call."""
    output: float = math.nan
    """The same of what they draw."""
    changed: tuple[str, ...] = ()
    """What of the pipeline's own call had to be changed so that the arithmetic is the same: solver, condition."""
    same: float = math.nan
    """The larger of both differences after that."""
    logprob: float = math.nan
    """Largest difference of log-probs between sampler and trainer at the same weights."""
    runs: dict[str, str] = field(default_factory=dict)
    """What is wrong with five updates, by run; nothing where they changed what they should and nothing else."""
    lora: float = math.nan
    """Output with an exported adapter that diffusers alone has loaded, beside ours."""
    full: float = math.nan
    """The same with all exported weights."""
    shares: bool = True
    """Whether rows share a forward."""

    @property
    def faults(self) -> list[str]:
        """What is not as it has to be."""
        if self.refused or self.failed:
            return [self.failed] if self.failed else []
        figures = {"sampler": self.same}
        figures |= {"log-probs": self.logprob, "adapter": self.lora} if GRPO in self.runs else {}
        figures |= {"weights": self.full} if FULL in self.runs else {}
        wrong = [f"{name} {value:.2g}" for name, value in figures.items() if not value <= EXACT]
        return wrong + [f"{name}: {problem}" for name, problem in self.runs.items() if problem]

    @property
    def good(self) -> bool:
        """Whether it can be trained, and everything is as it has to be."""
        return not (self.refused or self.faults)


def measure(tiny: Tiny, folder: Path, runs: Sequence[str] = tuple(RUNS)) -> Row:
    """Make a tiny pipeline, and compare and train it.

    Args:
        tiny: its description.
        folder: to write into; is made.
        runs: which of ``RUNS`` it is trained with.
    """
    row = Row(name=tiny.name, pipeline=tiny.kind, makes=tiny.makes)
    if absent := tiny.missing():
        row.refused = f"needs {', '.join(absent)}"
        return row
    folder.mkdir(parents=True)
    write(tiny, folder / "pipeline", SEED)
    recipe = write_recipe(tiny, folder)
    try:
        compare(row, tiny, recipe)
        for name in runs:
            train(row, name, tiny, recipe)
    except UserError as error:
        row.refused = str(error).partition("can't be trained: ")[2] or str(error)
    return row


def write_recipe(tiny: Tiny, folder: Path) -> Path:
    """A run of the pipeline in a folder: two prompts with the images that it needs, and a reward for any sample."""
    arguments = Arguments(pipeline_class(tiny.kind), RolloutOptions(batch_size=96))
    taken = arguments.parameters
    inputs = {name: media(kind, tiny, SEED) for name, kind in tiny.inputs.items() if kind in OF_FILES}
    given = {}
    for name, made in inputs.items():
        files = [f"{name}-{i}.png" for i in range(len(made))] if isinstance(made, list) else f"{name}.png"
        for file, image in zip(files, made, strict=True) if isinstance(files, list) else [(files, made)]:
            image.save(folder / file)
        given[name] = files
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": text, "negative_prompt": NEGATIVE} | given) + "\n" for text in PROMPTS)
    )
    (folder / "reward.py").write_text(REWARD)
    size = {name: getattr(tiny, name) for name in ("height", "width", "num_frames") if name in taken}
    more = {name: media(kind, tiny, SEED) for name, kind in tiny.inputs.items() if kind in ("text", "box")}
    # of networks that were distilled, it is an input
    own = "guidance_scale" if arguments.guidance in taken else "embedded_guidance"
    guided = tiny.name not in UNGUIDED and {arguments.guidance, "guidance_scale"} & set(taken)
    scale = {own: GUIDANCE} if guided else {}
    recipe = {
        "algorithm": "flow_grpo",
        "model": {"path": str(folder / "pipeline"), "family": "pipeline", "lora": {"rank": 2}},
        "data": {"train_files": str(folder / "prompts.jsonl"), "train_batch_size": 2,
                 "input_keys": [name for name in given if name != "image"]},
        "rewards": {"mean": {"name": "function", "path": f"{folder / 'reward.py'}:mean"}},
        "rollout": {"n": 2, "num_inference_steps": FEWER.get(tiny.kind, STEPS), **size,
                    **scale, "call": {**more, **tiny.call}},
        "optimizer": {"lr": 1e-2}, "scoring": {"processes": 0}, "steps": 1, "seed": SEED,
        "output_dir": str(folder / "run"),
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def compare(row: Row, tiny: Tiny, recipe: Path) -> None:
    """Our sampler beside the pipeline's own call, and if they differ beside one with the same arithmetic."""
    guided = "guidance_scale" in json.loads(recipe.read_text())["rollout"]
    ways = [f"rollout.guidance_scale={scale}" for scale in (GUIDANCE, 1.0)] if guided else ["rollout.guidance_scale=1"]

    def differences(changed: tuple[str, ...] = ()) -> tuple[float, float]:
        """Of final states and of outputs, the largest of all guidances."""
        found = []
        for way in ways:
            assembly = opened(recipe, way)
            if "condition" in changed:
                alike(assembly.roles.model)
            own = drawn(assembly)
            model: Any = assembly.roles.model
            row.shares &= model.shares
            found.append(apart(own, drawn_alone(tiny, recipe.parent / "pipeline", assembly, changed)))
        return max(states for states, _ in found), max(outputs for _, outputs in found)

    row.latents, row.output = differences()
    row.same = max(row.latents, row.output)
    for changed in (("solver",), ("condition",), ("solver", "condition")):
        if row.same <= EXACT:
            return
        same = max(differences(changed))
        if same < row.same:
            row.same, row.changed = same, changed


def train(row: Row, name: str, tiny: Tiny, recipe: Path) -> None:
    """A few updates of an algorithm: what they change, and what diffusers alone makes of the weights."""
    assembly = opened(recipe, *RUNS[name], f"rollout.num_inference_steps={FEWER.get(tiny.kind, TRAINED)}")
    model, metrics = assembly.roles.model, list[dict[str, float]]()
    with scoring(assembly):
        assembly.check()
        before = weights_of(model.pipeline, model.names)
        loop.run(
            range(1, assembly.config.steps + 1), assembly.source, assembly.workers,
            [lambda _, found: metrics.append(dict(found))], watch=assembly.watch, stop=lambda: False,
        )  # fmt: skip
    lora = assembly.config.model.lora is not None
    row.runs[name] = problem(metrics, before, weights_of(model.pipeline, model.names), model.names, lora=lora)
    differences = [found[LOGPROB] for found in metrics if LOGPROB in found]
    row.logprob = max([*differences, *([] if math.isnan(row.logprob) else [row.logprob])], default=row.logprob)
    if name == NFT:
        return
    if "condition" in row.changed:
        alike(model)
    folder = recipe.parent / f"exported {name}"
    folder.mkdir()
    write_weights(assembly, folder, "lora" if lora else "merged")

    def load_exported(base: Path) -> Any:
        pipeline = load_alone(base if lora else folder)
        for line in model.lora_lines(folder) if lora else ():
            with quietly():
                exec(line, {"pipe": pipeline})  # as `burnish export` shows it to users
        return pipeline

    alone = drawn_alone(tiny, recipe.parent / "pipeline", assembly, row.changed, loaded=load_exported)
    found = max(apart(drawn(assembly), alone))
    if lora:
        row.lora = found
    else:
        row.full = found


def opened(recipe: Path, *overrides: str) -> Assembly:
    """A run of the recipe that has not begun."""
    return assemble(load(str(recipe), list(overrides)))


@contextmanager
def scoring(assembly: Assembly) -> Iterator[None]:
    """The processes of a run that score."""
    assembly.scorer.start()
    try:
        yield
    finally:
        assembly.scorer.close()
        assembly.close()


def drawn(assembly: Assembly) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Final state, in the scheduler's scale, output, and which elements are noised, of each sample of our sampler."""
    engine: FlowEngine = assembly.engine
    model: Any = assembly.roles.model
    found = []
    with torch.no_grad():
        for _, path, samples in engine.sample(job_of(assembly)):
            rows: Any = path.conditioning
            for state, request, sample in zip(path.latents, rows.each(), samples, strict=True):
                table = model.program(request, model.rollout.guidance_scale).table
                returned = model.output(request, state[None])
                # the samples of a sound are clipped
                output = (model.arguments.values(returned) if isinstance(sample, Sound)
                          else model.decode_tensor(state[None], request))  # fmt: skip
                output = with_sound(model.arguments, returned, output)
                found.append((state * table.scale(path.schedule[-1]), output, model.noised(path.conditioning)))
    return found


def alike(model: Any) -> None:
    """Have samples begin from the noise that their condition has, and encode images without any."""
    without_noise(model.pipeline)
    model._tapes, model._programs, model._known = LruCache(1), LruCache(1), {}  # without encodings with noise
    first = model.initial_latents
    model.initial_latents = lambda request, _: first(request, seed_of(request.prompts[0]))


def apart(
    ours: Sequence[tuple[Tensor, Tensor, Tensor | None]], theirs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[float, float]:
    """Largest relative difference of states, and of outputs."""
    pairs = list(zip(ours, theirs, strict=True))
    # elements that the pipeline keeps, as those outside of a mask, are its own to replace
    kept = [slice(None) if noised is None else noised[0].flatten() for _, _, noised in ours]
    states = max(
        # what is stepped and then read by nothing (LTX2HDR) comes last in theirs, and is no state of ours
        distance(one[0].flatten()[at], other[0].flatten()[: one[0].numel()][at])
        for at, (one, other) in zip(kept, pairs, strict=True)
    )
    return states, max(distance(one[1].flatten(), other[1].flatten()) for one, other in pairs)


def weights_of(pipeline: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """Copies of everything that the parts of a pipeline hold; what they share is of the one that is trained."""
    parts = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    own = {id(value) for part in names for value in _held(parts[part]).values()}
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in parts.items() for name, value in _held(module).items()
        if part in names or id(value) not in own
    }  # fmt: skip


def _held(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(), *module.named_buffers()))


def problem(
    metrics: Sequence[dict[str, float]], before: dict[str, Tensor], after: dict[str, Tensor], names: Sequence[str],
    *, lora: bool,
) -> str:  # fmt: skip
    """What is wrong with some updates; nothing where they changed what is trained and nothing else."""
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    wrong = [
        name for name in changed if name.partition(".")[0] not in names or (lora and ".lora_" not in name)
    ]  # fmt: skip
    if before.keys() != after.keys() or wrong:
        return f"changes {(wrong or sorted(before.keys() ^ after.keys()))[0]}"
    # without guidance, as DiffusionNFT learns, nobody asks an unconditional network
    asked = [name for name in names if not name.startswith("unconditional")]
    if idle := [name for name in asked if not any(one.startswith(f"{name}.") for one in changed)]:
        return f"changes nothing in {idle[0]}"
    for found in metrics:
        loss, norm = found.get("actor/loss", math.nan), found.get("actor/grad_norm", math.nan)
        if not (math.isfinite(loss) and math.isfinite(norm) and norm > 0):
            return f"loss {loss:.3g}, gradient norm {norm:.3g}"
    return ""
