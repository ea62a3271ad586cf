"""A run that trains a model that draws: its objects, and how it is evaluated."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.data.images import BEGINNING
from burnish.data.prompts import IMAGES, read_prompts
from burnish.data.stream import Stream
from burnish.diffusion.algorithms.forward_process import SFT
from burnish.diffusion.config import DENOISERS, FlowConfig
from burnish.diffusion.engine import CHANGED, FlowEngine, FlowJob
from burnish.diffusion.offline import FinishedImages, ImageFiles
from burnish.diffusion.pipeline.base import FlowModel
from burnish.diffusion.pipeline.contexts import check_contexts
from burnish.diffusion.pipeline.loaded import LoadedPipeline, tile
from burnish.diffusion.pipeline.loading import (
    check_parts,
    check_teacher,
    classes_of,
    family_of,
    load_model,
    load_outline,
    load_teacher,
    parts_of,
    read_index,
    standard_side,
    vae_factor,
)
from burnish.diffusion.pipeline.networks import by_name, check_attention_and_compile, writers
from burnish.diffusion.roles import FlowRoles
from burnish.diffusion.rollouts import FlowRollouts, inputs_of
from burnish.evaluation.records import sampled_settings
from burnish.models.quantization import FP8_SINCE, layers_for_fp8, layers_to_quantize
from burnish.rewards.base import Reward
from burnish.rollout.sources import RolloutRequest, collector
from burnish.tasks.assembly import Assembly
from burnish.tasks.drawings import DrawnEvaluation, shades
from burnish.tasks.evaluate import Evaluated
from burnish.training.optimizer import ParameterGroup
from burnish.training.trainer import AuxiliaryLoss
from burnish.types.media import Media
from burnish.types.prompt import Prompts
from burnish.types.rollout import OfflineSamples, Prompt, Scored
from burnish.types.samples import Clip, Sample, Sound, coarse
from burnish.utils.errors import UserError


class FlowEvaluation(DrawnEvaluation):
    """Draws."""

    def check(self) -> None:
        super().check()
        assembly, suite = self.assembly, self.suite
        assembly.check_drawn(suite.scorers, self.prompts, f"suite {suite.name}: scorers")
        drawing, validation = suite.drawing, assembly.config.validation
        sized = self.prompts, drawing.height or validation.height, drawing.width or validation.width
        assembly.check_sizes(suite.scorers, sized)

    def job(self, n: int, guidance: float | None = None) -> FlowJob:
        how = self.settings if self.suite else vars(self.assembly.config.validation)
        changes = {name: how[name] for name in CHANGED} | ({} if guidance is None else {"guidance_scale": guidance})
        return self.groups(FlowJob, n, changes=changes)

    @property
    def settings(self) -> dict[str, Any]:
        config = self.assembly.config
        rollout = asdict(config.rollout)
        own = rollout | {name: value for name, value in asdict(config.validation).items() if value is not None}
        others = ("batch_size", "embedded_guidance", "schedule", "shift", "max_sequence_length")
        return (
            sampled_settings(self.suite, own) | {name: rollout[name] for name in others} | {"dtype": config.model.dtype}
        )

    def prepare(self, job: FlowJob) -> None:
        self.assembly.engine.prepare(job.prompts, job)

    def sampled(self, job: FlowJob) -> Evaluated:
        """In batches, which are scored while the next ones are sampled."""
        assembly, structures, shown = self.assembly, list[Any](), list[Any]()
        context = assembly.ranks.context  # ranks that draw the same, of which the first scores and keeps it
        scoring = collector(job, self.scorer, one_by_one=False, tell=assembly.tell)
        with closing(assembly.engine.sample(job)) as parts:
            for rows, trace, samples in parts:
                if context.rank == 0:
                    scoring.add(range(rows.start, rows.stop), samples, inputs_of(trace, self.scorer))
                # no more is kept than is needed: clips would fill the memory
                kept = (job.group[rows] < (0 if context.rank else self.shown)).tolist()
                shown += [sample if keep else None for sample, keep in zip(samples, kept, strict=True)]
                structures += map(coarse, samples)
        return Evaluated(context.first(lambda: scoring.scores(assembly.stop.check)), structures, shown)


log = logging.getLogger(__name__)

HELD = ("kl_guidance", "reference_guidance")  # options of algorithms: guidance of the untrained model
EVEN = 64  # pixels by whose multiples every pipeline draws
DUMMY_FRAMES, DUMMY_RATE = 16, 16_000  # of a made-up clip and of a made-up sound


@contextmanager
def asked_by(option: str) -> Iterator[None]:
    """What is refused of guidance is refused as another option's."""
    try:
        yield
    except UserError as error:
        raise UserError(re.sub(r"(rollout\.)?guidance_scale is", f"{option} is", str(error))) from error


class FlowAssembly(Assembly):
    """Prompts, networks, engine and source of a generator."""

    config: FlowConfig
    evaluation = FlowEvaluation
    suite_runner = FlowEvaluation
    library = "diffusers"

    def load_roles(self, model: FlowModel | None = None) -> FlowRoles:
        config, rollout = self.config, self.config.rollout
        return FlowRoles(
            model or load_model(config.model, rollout, shared=self.sharded, only_samples=self.only_samples),
            self.needs,
            config.model.lora,
            guidance=rollout.guidance_scale,
            micro_batch_size=config.trainer.micro_batch_size,
            on_policy=config.steps_per_update == 1,
            seed=config.seed,
            load_teacher=lambda teacher, student: load_teacher(
                config.model, student, teacher.path, teacher.lora, rollout
            ),
            rewards=config.rewards,
            shared=self.sharded,
        )

    @cached_property
    def outline(self) -> FlowModel:
        return load_outline(self.config.model, self.config.rollout)

    @property
    def odd_sizes(self) -> Mapping[str, tuple[int, int]]:
        own, val = self.config.rollout, self.config.validation
        sizes = {"rollout": (own.height, own.width), "validation": (val.height or own.height, val.width or own.width)}
        odd = {section: size for section, size in sizes.items() if any(side and side % EVEN for side in size)}
        return {section: (height or width or EVEN, width or height or EVEN) for section, (height, width) in odd.items()}

    def match_layers(self, outline: FlowModel) -> None:
        if isinstance(outline, LoadedPipeline):
            outline.refuse_sizes(self.odd_sizes)
        options, fewer = self.config.model, self.config.model.quantization
        if fewer is not None and fewer.weights is not None:
            layers_to_quantize(outline.network, fewer.weights, exclude=fewer.exclude)
        if self.config.rollout.fp8:
            layers_for_fp8(outline.network)
            if options.device != "cpu" and torch.cuda.is_available() and torch.cuda.get_device_capability() < FP8_SINCE:
                raise UserError(
                    f"rollout.fp8 is true, but {torch.cuda.get_device_name()} has no products in fp8, which NVIDIA's "
                    "GPUs have from compute capability 8.9 on; remove it"
                )
        for name, network in by_name(outline.network, [outline.writer or "network"]).items():
            if name != outline.writer:
                check_attention_and_compile(network, options)
        if options.vae_tiling and isinstance(outline, LoadedPipeline):
            tile(outline.pipeline)
        if options.gradient_checkpointing:
            outline.recompute_activations(options.gradient_checkpointing)

    @cached_property
    def engine(self) -> FlowEngine:
        return FlowEngine(self.roles, self.config.rollout, seed=self.config.seed)

    @cached_property
    def groups(self) -> list[ParameterGroup]:
        return super().groups + [
            ParameterGroup(name, self.roles.parameters(name), options, total_steps=self.config.schedule_steps(options))
            for name, options in self.needs.networks.items()
            if options is not None
        ]

    @cached_property
    def rollout_worker(self) -> FlowRollouts:
        return FlowRollouts(
            self.engine, self.scorer, self.needs,
            rollout=self.config.rollout, watch=self.watch, check_cancelled=self.stop.check,
            files=self.sample_files,
        )  # fmt: skip

    def generate(self, request: RolloutRequest | None) -> Scored | None:
        roles, worker = self.roles, self.rollout_worker
        scored: Scored | None = None
        if request is not None:
            self.engine.prepare(request.prompts)
        # adapters share one network, which is gathered once for all
        with roles.gathered() if roles.lora is not None else nullcontext():
            try:
                with roles.gathered():
                    if request is not None:
                        scored = worker.generate(request, compared=False)
            finally:
                # also where this rank has nothing to sample, was cancelled or has failed: the others wait for it
                scored = worker.compared(scored, 0 if request is None else request.groups)
        return None if self.ranks.context.rank else scored  # one answers for those that drew the same

    @cached_property
    def files(self) -> dict[str, ImageFiles]:
        """Finished images that are learned from, by the section that names them."""
        config, files = self.config, dict[str, ImageFiles]()
        if config.holds != "prompts":
            files["data"] = ImageFiles.read(config, config.data.train_files, config.holds, self.limited)
        if config.supervised is not None:
            files["supervised"] = ImageFiles.read(config, config.supervised.train_files, "images")
        return files

    @cached_property
    def finished(self) -> dict[str, FinishedImages]:
        """All these images, as the model has them."""
        return {name: FinishedImages(files, self.engine) for name, files in self.files.items()}

    @property
    def records(self) -> Sequence[Any]:
        return self.files["data"].records

    def prepare(self, records: list[Any], update: int) -> OfflineSamples | Scored:
        return self.finished["data"].batch(records, self.offline_times, update=update, seed=self.config.seed)

    @cached_property
    def auxiliary(self) -> AuxiliaryLoss | None:
        section, config = self.config.supervised, self.config
        if section is None:
            return None
        data, records = self.finished["supervised"], self.files["supervised"].records
        stream = Stream(records, section.batch_size, seed=config.seed, shuffle=True, name="supervised")

        def draw(step: int) -> Any:
            return data.batch(stream.batch(step), self.offline_times, update=step, seed=config.seed)

        return AuxiliaryLoss(SFT(), draw, section.coef)

    @cached_property
    def offline_times(self) -> Tensor:
        """Times of the denoising steps of the run, for images of a data set."""
        return self.engine.schedule(next(iter(self.files.values())).prompts[0])

    @cached_property
    def train_prompts(self) -> Prompts:
        return Prompts.of(self.files["data"].prompts) if "data" in self.files else super().train_prompts

    @property
    def all_records(self) -> Sequence[Any]:
        return self.records if "data" in self.files else super().all_records

    def media(self) -> Iterator[tuple[str, Media]]:
        for prompt in (*self.train_prompts.kinds, *self.val_prompts.kinds):
            yield from ((prompt.where, media) for media in (*prompt.images, *(one for _, one in prompt.inputs)))
        for files in self.files.values():
            yield from ((record.where, media) for record in files.images for media in record.images)

    def check_data(self) -> None:
        super().check_data()
        if self.config.sharding.context_parallel > 1:
            self.check_split_sequences()
        self.check_drawn(self.config.rewards, self._drawn_from, "rewards")
        check_parts(self.config.model, self.config.rollout, self._drawn_from)
        self.check_writer()
        for i, teacher in enumerate(self.needs.teachers):
            check_teacher(self.config.model, teacher.path, teacher.lora, f"algorithm.teachers[{i}]")
        for option, scale in self.guidances.items():
            path, index = read_index(self.config.model)
            with asked_by(option):
                family_of(self.config.model, index).check_options(
                    path, index, replace(self.config.rollout, guidance_scale=scale or 1.0)
                )
        validation, trained = self.config.validation, self.train_prompts if self.config.online else ()
        sized = (trained, None, None), (self.val_prompts, validation.height, validation.width)
        self.check_sizes(self.config.rewards, *sized)

    @property
    def guidances(self) -> dict[str, float | None]:
        """Guidance of teachers, of the untrained model and of what is learned, by option; None is the rollout's."""
        teachers = {f"algorithm.teachers[{i}].guidance_scale": one.guidance_scale
                    for i, one in enumerate(self.needs.teachers)}  # fmt: skip
        own = {name: getattr(self.config.algorithm, name, None) for name in HELD} | {
            "name": 1.0 if self.needs.unguided else None
        }
        return teachers | {f"algorithm.{name}": scale for name, scale in own.items() if scale is not None}

    def check_writer(self) -> None:
        """Refuse to train a part that writes tokens where nothing can learn them, by model_index.json alone."""
        config, how = self.config, self.needs.recording
        writing = writers(classes_of(read_index(config.model)[1]), config.model.networks or ())
        if not writing:
            return
        said = f"model.networks has {writing[0]}, which writes tokens for each sample"
        if not self.needs.tokens:
            raise UserError(
                f"{said}, but {config.algorithm.name} learns none; choose a policy gradient such as flow_grpo, or "
                "leave it out: frozen, it writes once for each prompt"
            )
        if how is not None and how.shared_noise:
            raise UserError(
                f"{said}, but {config.algorithm.name} has samples of a prompt share their first steps "
                "(algorithm.shared_noise); set it to false, or choose flow_grpo"
            )

    def check_drawn(self, rewards: Mapping[str, Reward], prompts: Sequence[Prompt], section: str) -> None:
        """Refuse prompts that the model can't draw from, and rewards that can't score what it draws."""
        _, index = read_index(self.config.model)
        family, drawn = family_of(self.config.model, index), self.config.drawn
        family.check_inputs(index, self.config.rollout, prompts)
        refused = {label: reward.refusal(drawn) for label, reward in rewards.items()}
        if problems := [f"{section}.{label}: {problem}" for label, problem in refused.items() if problem]:
            raise UserError("\n".join([*problems, "leave these rewards or options out, or train another model"]))

    @property
    def _drawn_from(self) -> Prompts:
        """All prompts that are encoded."""
        more = [prompt for name, files in self.files.items() if name != "data" for prompt in files.prompts]
        return self.train_prompts + self.val_prompts + Prompts.of(more)

    def check_split_sequences(self) -> None:
        """Refuse a model whose sequences ranks can't split."""
        check_contexts(*read_index(self.config.model), self.config.sharding.context_parallel)

    def unfit(self, width: int, height: int) -> str:
        least = vae_factor(read_index(self.config.model)[0])
        small = f"is {width} x {height} pixels, but a latent of this model's VAE alone is {least} x {least}"
        return small if min(width, height) < least else ""

    def check_sizes(
        self, rewards: Mapping[str, Reward], *sized: tuple[Sequence[Prompt], int | None, int | None]
    ) -> None:
        """Refuse images of a size that a reward can't score; None is that of the run's own."""
        image = self.dummy_sample()
        if isinstance(image, np.ndarray):
            for reward in rewards.values():
                for prompts, height, width in sized:
                    reward.check_size(prompts, height or image.shape[0], width or image.shape[1])

    def dummy_sample(self) -> Sample:
        """An image of shades, of the size that the run draws, or what else it draws."""
        path, _ = read_index(self.config.model)
        rollout = self.config.rollout
        height, width = rollout.height, rollout.width
        standard = standard_side(path) if height is None or width is None else 0
        image = shades(height or standard, width or standard)
        wave = Sound.of(np.sin(np.arange(DUMMY_RATE) / 10)[None], DUMMY_RATE)
        match self.config.drawn:
            case "clip":
                frames = np.stack([image] * (rollout.num_frames or DUMMY_FRAMES))
                return Clip(frames=frames, fps=rollout.fps or DUMMY_FRAMES, sound=wave)
            case "sound":
                return wave
        return image

    def weight_files(self) -> tuple[str, list[Path]]:
        path, index = read_index(self.config.model)
        networks = [name for name in parts_of(index) if name.startswith(DENOISERS)] or parts_of(index)
        files = sorted(file for name in networks for file in path.glob(f"{name}/*") if file.is_file())
        return str(index.get("_class_name")), files

    def check(self) -> None:
        if prompts := self._drawn_from:
            self.engine.latent_shape(prompts[0])  # refuses sizes that the model can't draw
            if self.config.validates:  # nor those of validations
                self.engine.latent_shape(prompts[0], self.evaluation(self).job(1, None))
        super().check()
        if isinstance(model := self.roles.model, LoadedPipeline) and model.own and self.config.model.lora is None:
            for name, network in model.networks.items():
                model.check_export(name, network.state_dict().keys())
        asked = [(role.model, role.guidance) for role in self.roles.teachers]
        asked += [(self.roles.model, scale or 1.0) for scale in [*self.guidances.values()][len(asked) :]]
        for option, (model, scale) in zip(self.guidances, asked, strict=True):
            with asked_by(option), self.roles.sampling("policy", merge=False):
                model.verify(self.engine.condition(self._drawn_from[:1]), guidance=scale)
        for data in self.finished.values():
            data.check()

    def trial(self) -> None:
        job = FlowJob.groups(self.val_prompts[:1], 1, purpose="trial", update=0)
        validated = replace(self.evaluation(self).job(1, None).select(slice(0, 1)), purpose="trial")
        alike = all(validated.changes[name] is None for name in ("height", "width", "guidance_scale"))
        # pipelines that begin from an image take fewer steps than they are asked for, and might take none of two
        taken, asked = len(self.engine.schedule(job.prompts[0])) - 1, self.config.rollout.num_inference_steps
        steps = min(asked, 2) if taken == asked else None  # some places no noise levels for one
        for one, section in [(job, "rollout")] if alike else [(job, "rollout"), (validated, "validation")]:
            few = replace(one, changes={**one.changes, "num_inference_steps": steps})
            for _, _, samples in self.engine.sample(few):
                self._tell_size(one, samples[0], section)

    def _tell_size(self, job: FlowJob, sample: Sample, section: str) -> None:
        """Warn where a pipeline draws another size than it is asked for: some choose among sizes of their own."""
        how = self.engine.options_of(job)
        asked = how.height, how.width
        pixels = sample.frames[0] if isinstance(sample, Clip) else sample
        if None in asked or isinstance(pixels, Sound) or pixels.shape[:2] == asked:
            return
        log.warning(
            "%s.height is %d and width %d, but the pipeline draws %d x %d pixels, and needs the time and memory of "
            "that size; set the options to it", section, *asked, *pixels.shape[:2],
        )  # fmt: skip

    def read(self, files: str | list[str]) -> Prompts:
        # beside images to imitate, ``image`` is one of those, and no image that a prompt begins from
        holds = self.config.holds
        images = BEGINNING[holds] if holds in ("images", "scored") else IMAGES
        prompts = read_prompts(files, self.config.data, images=images)
        for reward in self.config.rewards.values():
            reward.check(prompts)
        return prompts

    def save(self, target: Path, weights: dict[str, Tensor]) -> None:
        self.roles.model.save_pipeline(target, weights)

    def loading_lines(self, base: Path, adapter: Path | None) -> list[str]:
        # diffusers wants to hear of the parts that a pipeline does without, though its model_index.json says so
        model = self.roles.model
        without = "".join(f", {name}=None" for name in model.absent_parts())
        load = f'pipe = {model.class_name}.from_pretrained("{base}"{without})'
        parts = ["pipe.load_components()"] * hasattr(model.pipeline, "load_components")  # of a modular one
        return [load, *parts, *([] if adapter is None else model.lora_lines(adapter))]
