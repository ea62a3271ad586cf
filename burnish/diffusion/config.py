"""The configuration of a run that trains a model that draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.config.batches import AUTO, Sizes
from burnish.config.run import RunConfig
from burnish.config.tasks import DRAWN, Words
from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.algorithms.forward_process import steps_between
from burnish.diffusion.options import (
    DataOptions,
    ModelOptions,
    RolloutOptions,
    TrainerOptions,
    ValidationOptions,
)
from burnish.diffusion.pipeline.adapters import FILE
from burnish.diffusion.pipeline.loading import FEW, family_of, parts_of, read_index, sign_of_few_steps, sign_of_name
from burnish.options import EVALUATED, OptimizerOptions, Rules, SupervisedOptions
from burnish.registry import Choice, lookup, names, options
from burnish.rewards.base import Reward
from burnish.rl.algorithm import Algorithm
from burnish.types.samples import Kind
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.weights import complaints_about, pickle_complaint, refuse_quantized, tokenizer_complaint

DENOISERS = ("transformer", "unet")  # usual names of the parts that are trained

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # of batches of rows and of images; even parts of 96
UNFORESEEN = 4  # rows and images at once on a GPU whose memory nobody has forecast


@options
class FlowConfig(RunConfig):
    """A flow-matching generator learns from rewards of its images."""

    needs: ClassVar[type] = Needs
    algorithm_kind: ClassVar[str] = "flow algorithm"
    reward_kind: ClassVar[str] = "flow reward"
    model_kind: ClassVar[str] = "flow model"
    model_index: ClassVar[str] = "model_index.json"
    adapter_files: ClassVar[tuple[str, ...]] = (FILE,)
    grouped_sections: ClassVar[tuple[str, ...]] = ("candidates", "filter_groups")
    prompt_file: ClassVar[str] = "a .txt, .jsonl, .json, .csv or .parquet file of prompts, or org/name@split of the hub"

    task: Literal["text-to-image"] = "text-to-image"
    """What is trained: text-to-image models that draw, or image-text-to-text models that see."""
    model: ModelOptions
    """Which network is trained, and how much of it."""
    data: DataOptions
    """Training and validation prompts."""
    algorithm: Annotated[Algorithm, Choice("flow algorithm")]
    """What is learned from rewards: its name and its options."""
    rewards: dict[str, Annotated[Reward, Choice("flow reward")]]
    """What a good image is: a weighted sum of rewards, by name."""
    rollout: RolloutOptions = Field(default_factory=RolloutOptions)
    """How images are sampled."""
    trainer: TrainerOptions = Field(default_factory=TrainerOptions)
    """How a batch becomes optimizer steps."""
    validation: Annotated[ValidationOptions, EVALUATED] = Field(default_factory=ValidationOptions)
    """Validation on held-out prompts, always with the same noise."""
    supervised: SupervisedOptions | None = None
    """Also imitate images of the user at every optimizer step; null does not."""

    @property
    def sampled_per_prompt(self) -> int:
        return self.rollout.candidates.n if self.rollout.candidates else self.rollout.n

    @property
    def optimizers(self) -> dict[str, OptimizerOptions]:
        networks = self.algorithm.needs().networks
        others = {f"algorithm.{name}_optimizer": one for name, one in networks.items() if one is not None}
        return super().optimizers | others

    @property
    def reference_guidance(self) -> float | None:
        return self.validation.reference_guidance

    @property
    def drawn(self) -> Kind:
        """What the model draws, by its configuration files alone."""
        _, index = read_index(self.model)
        return family_of(self.model, index).draws(index, self.rollout)  # type: ignore[no-any-return]

    @property
    def words(self) -> Words:
        return DRAWN[self.drawn]

    def check_model(self, folder: Path) -> None:
        _, index = read_index(self.model)
        parts = [folder / name for name in parts_of(index)]
        wrong = [one for part in parts if (part / "config.json").is_file() for one in complaints_about(part)]
        wrong += [one for part in parts if (part / "config.json").is_file() and (one := pickle_complaint(part))]
        wrong += [one for part in parts if part.name.startswith("tokenizer") and (one := tokenizer_complaint(part))]
        if wrong:
            raise UserError("\n".join(f"model.path: {problem}" for problem in wrong))
        for part in parts:
            if part.name.startswith(DENOISERS) and (part / "config.json").is_file():
                refuse_quantized(read_object(part / "config.json"), f"model.path: {part} holds a network")
        family_of(self.model, index).check_options(folder, index, self.rollout)

    @property
    def _together(self) -> int:
        """Samples that one loss compares."""
        return {"sample": 1, "pair": 2, "group": self.rollout.n}[self.algorithm.needs().atom]

    def batch_sizes(self) -> dict[str, Sizes]:
        least = self._together
        rows = Sizes(tuple(sorted({max(least, size) for size in SIZES})), max(least, SIZES[-1]), max(least, UNFORESEEN))
        return {"trainer.micro_batch_size": rows, "rollout.batch_size": Sizes(SIZES, SIZES[-1], UNFORESEEN)}

    @property
    def sampled_together(self) -> int:
        return self.sharding.context_parallel

    @property
    def finished(self) -> str:
        """What is learned from where nothing is sampled, for messages."""
        return "images with scores" if self.holds == "scored" else str(self.holds)

    def contradictions(self, run: RunConfig) -> Rules:
        needs, rollout, steps = self.algorithm.needs(), self.rollout, self.rollout.num_inference_steps
        name, together, size = self.algorithm.name, self._together, self.trainer.micro_batch_size
        low, high = needs.schedule_range
        levels = len(steps_between(low, high, steps))
        inside = f", of which {levels} are in algorithm.time_range" if levels < steps else ""
        return [
            *super().contradictions(run),
            (
                needs.tree and rollout.n != needs.tree,
                f"rollout.n is {rollout.n}, but the splits of {name} make a tree of {needs.tree} samples (branching to "
                f"the power of their number); set rollout.n={needs.tree}, or split otherwise",
            ),
            (
                needs.best_of >= rollout.n > 1,
                f"algorithm.best_of is {needs.best_of}, but rollout.n is {rollout.n}: no sample would be left out; "
                "lower best_of, or null trains on all",
            ),
            (
                self.holds == "scored" and (needs.recording is not None or needs.reward_gradients),
                f"data.scores is given, but {name} learns from the steps on the way to a sample, which no file holds; "
                "take diffusion_nft, awm, crd, dgpo, sft or diffusion_dpo, or leave data.scores out",
            ),
            (
                needs.recording is not None
                and needs.recording.steps_after < 1
                and bool(rollout.filter_groups and rollout.filter_groups.replay_buffer),
                "rollout.filter_groups.replay_buffer is given, but with algorithm.steps_after below 1 every update has "
                "a schedule of its own, and samples of several can't be learned from together; leave one of them out",
            ),
            (
                needs.schedule_times > levels,
                f"algorithm.train_timesteps is {needs.schedule_times}, but rollout.num_inference_steps is {steps}"
                f"{inside}, and levels are drawn from the schedule without repetition; train at fewer",
            ),
            (
                # the last one alone is Euler's by every solver
                needs.euler_steps > 1 and rollout.solver != "euler",
                f"rollout.solver is {rollout.solver}, but algorithm.last_steps is {needs.euler_steps}: gradients run "
                "through Euler's steps, and would be of other images; set rollout.solver=euler, or "
                "algorithm.last_steps=1",
            ),
            *(
                (
                    rollout.fp8 and bool(given),
                    f"rollout.fp8 is true and {option} is given, but it rounds weights that a GPU holds whole and as "
                    "they are trained; leave one of them out",
                )
                for option, given in {
                    "model.quantization.weights": self.model.quantization and self.model.quantization.weights,
                    "model.offload": self.model.offload,
                    "sharding.offload": self.sharding.offload,
                    "sharding.tensor_parallel": self.sharding.parts > 1,
                }.items()
            ),
            (
                size != AUTO and size < together,
                f"trainer.micro_batch_size is {size}, but {name} compares {together} samples in one loss, which stay "
                f"together; raise it to {together} or more, or remove it",
            ),
            (
                needs.data == "images" and self.supervised is not None,
                f"supervised is given, but {name} learns from images already: put all into data.train_files",
            ),
            (
                self.data.fit == "centre_crop" and None in (rollout.height, rollout.width),
                "data.fit is centre_crop, but to what size? Set rollout.height and rollout.width",
            ),
            *((True, complaint) for complaint in [*self._window(), *self._gradients()]),
            *(
                (
                    teacher.is_start and teacher.guidance_scale in (None, rollout.guidance_scale),
                    f"algorithm.teachers[{i}] is the untrained model with rollout.guidance_scale "
                    f"{rollout.guidance_scale:g}, which is the student itself; give it another guidance_scale, a lora "
                    "or a path",
                )
                for i, teacher in enumerate(needs.teachers)
            ),
        ]

    def _window(self) -> Iterator[str]:
        """Why the denoising steps that are learned are not among those that are made, or no other may be inexact."""
        recording, steps, learned = self.algorithm.needs().recording, self.rollout.num_inference_steps, range(0)
        try:
            if recording is not None:
                recording.check(steps)
                if recording.window.kind == "all":
                    learned = recording.window.within(steps)
        except ValueError as error:
            option = "algorithm.window: " if str(error).startswith("a window") else "algorithm."
            yield f"{option}{error} (rollout.num_inference_steps is {steps})"
        if self.rollout.fp8 and {*range(steps - 1)} <= {*learned}:
            yield (
                f"rollout.fp8 is true, but of {steps} steps (rollout.num_inference_steps) all but the last are learned "
                "from (algorithm.window), and those are exact; learn from fewer, or remove it"
            )
        if self.rollout.cache_interval > 1 and {*range(2, steps - 1)} <= {*learned}:
            yield (
                f"rollout.cache_interval is {self.rollout.cache_interval}, but the networks run at each of the {steps} "
                "steps (rollout.num_inference_steps): at the first two, the last, and those that are learned from "
                "(algorithm.window); learn from fewer, or remove it"
            )

    def _gradients(self) -> Iterator[str]:
        """Rewards that count and have no gradients, where the algorithm follows them."""
        for label, reward in self.rewards.items():
            refusal = reward.gradient_refusal() if self.algorithm.needs().reward_gradients and reward.counts else ""
            if refusal and reward.has_gradients():
                yield f"rewards.{label}: {self.algorithm.name} follows gradients of rewards; {refusal}"
            elif refusal:
                having = [name for name in names(self.reward_kind) if lookup(self.reward_kind, name).has_gradients()]
                yield (
                    f"rewards.{label} has weight {reward.weight:g}, but {self.algorithm.name} follows gradients of "
                    f"rewards, and {reward.name} has none; set rewards.{label}.weight=0, which only watches it, and "
                    f"use one of {', '.join(having)}"
                )

    def cautions(self) -> Iterator[str]:
        yield from self._few_steps()
        if self.rollout.fp8 and not self.model.compile:
            yield (
                "rollout.fp8 is true and model.compile is false: rounding the inputs takes a kernel of its own then, "
                "about as long as the products save; set model.compile=true"
            )
        if self.rollout.merge_lora is True and self.model.lora is not None and self.model.dtype == "bfloat16":
            yield (
                "rollout.merge_lora is true and model.dtype is bfloat16: adapters are rounded with the weights that "
                "they are folded into. Most of an early step is lost, and log-probs of sampler and trainer differ by "
                "about 1e-3; rollout.merge_lora=auto samples with the policy that learns"
            )

    def _few_steps(self) -> Iterator[str]:
        """What is to be told about a model that was distilled to draw in a few steps."""
        path, index = read_index(self.model)
        lora, rollout = self.model.lora.path if self.model.lora is not None else None, self.rollout
        sign = sign_of_few_steps(path, index, self.model.path) or sign_of_name(lora or "")
        if not sign or self.algorithm.needs().few_steps:
            return
        steps, scale = rollout.num_inference_steps, rollout.guidance_scale
        odd = {
            f"rollout.num_inference_steps is {steps}, and such models take 1 to {FEW}": steps > FEW,
            f"rollout.guidance_scale is {scale:g}, and guidance is in their weights": scale > 1,
        }
        yield (
            f"model.path is {self.model.path}, which seems to be distilled to few steps: {sign}. What teaches "
            "velocities at all noise levels takes that away again: images blur, or fall apart after some updates. "
            "Train the model that it was distilled from, or stop early, by the images of the validations"
            + "".join(f"; {what}" for what, is_so in odd.items() if is_so)
        )
