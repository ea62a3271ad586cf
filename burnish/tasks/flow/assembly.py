"""A run that trains a model that draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from burnish.algorithms.flow.sft import SFT
from burnish.config.flow import FlowConfig
from burnish.data.flow.offline import OfflinePictures
from burnish.data.flow.prompts import read_prompts
from burnish.data.stream import PromptStream, Stream
from burnish.models.flow.loading import load_model, read_index, standard_side
from burnish.models.flow.teachers import check_teacher, load_teacher
from burnish.rollout.base import StreamSource
from burnish.rollout.offline_flow import OfflineFlowSource
from burnish.rollout.online import OnlineSource
from burnish.rollout.prompt_schedule import PromptSchedule
from burnish.tasks.assembly import Assembly
from burnish.tasks.flow.engine import FlowEngine, Job
from burnish.tasks.flow.pictures import PictureFiles
from burnish.tasks.flow.roles import NetworkRoles
from burnish.tasks.flow.rollouts import FlowRollouts
from burnish.training.auxiliary import Supervised
from burnish.types.media import Media
from burnish.types.rollout import OfflineSamples, Prompt
from burnish.utils.paths import resolve


class FlowAssembly(Assembly):
    """Prompts, networks, engine and source of a generator."""

    config: FlowConfig

    @cached_property
    def roles(self) -> NetworkRoles:
        config, rollout = self.config, self.config.rollout
        size = config.trainer.mini_batch_size or config.samples
        model = load_model(
            config.model, max_sequence_length=rollout.max_sequence_length, embedded_guidance=rollout.embedded_guidance
        )
        roles = NetworkRoles(
            model,
            self.needs,
            config.model.lora,
            guidance=rollout.guidance_scale,
            rescale=rollout.guidance_rescale,
            micro_batch_size=config.trainer.micro_batch_size,
            on_policy=config.trainer.epochs == 1 and size >= config.samples,
            seed=config.seed,
            load_teacher=lambda teacher: load_teacher(
                config.model, teacher.path, teacher.lora, embedded_guidance=rollout.embedded_guidance
            ),
            rewards=config.rewards,
        )
        if self.ranks.size > 1:
            roles.shard(self.ranks, config.sharding)
        return roles

    @cached_property
    def engine(self) -> FlowEngine:
        return FlowEngine(self.roles, self.config.rollout, seed=self.config.seed)

    @cached_property
    def source(self) -> StreamSource:
        config, data = self.config, self.config.data
        if self.pictures is not None:
            given = Stream(self.pictures.records, data.train_batch_size, seed=config.seed, shuffle=data.shuffle)
            return OfflineFlowSource(
                given, self.finished[0], schedule=self.engine.times, seed=config.seed, watch=self.watch
            )
        return OnlineSource(self.questions, self.rollout_worker)

    @cached_property
    def questions(self) -> PromptSchedule:
        data, rollout = self.config.data, self.config.rollout
        return PromptSchedule(
            stream=PromptStream(self.train_prompts, data.train_batch_size, seed=self.config.seed, shuffle=data.shuffle),
            n=rollout.candidates.n if rollout.candidates else rollout.n,
            filtering=rollout.filter_groups,
        )

    @cached_property
    def rollout_worker(self) -> FlowRollouts:
        return FlowRollouts(
            self.engine, self.scorer, self.needs,
            rollout=self.config.rollout, watch=self.watch, between=self.between,
        )  # fmt: skip

    @cached_property
    def pictures(self) -> PictureFiles | None:
        """Finished pictures that the algorithm learns from in place of prompts."""
        if self.needs.data == "prompts":
            return None
        return PictureFiles(self.config, self.config.data, self.needs.data)

    @cached_property
    def more_pictures(self) -> PictureFiles | None:
        """Finished pictures that are learned beside."""
        section = self.config.supervised
        return PictureFiles(self.config, section, "pictures") if section is not None else None

    @cached_property
    def finished(self) -> list[OfflinePictures]:
        """All these pictures, as the model has them."""
        return [files.learned_by(self.engine) for files in (self.pictures, self.more_pictures) if files is not None]

    @cached_property
    def besides(self) -> Supervised | None:
        section, config = self.config.supervised, self.config
        if section is None or self.more_pictures is None:
            return None
        learned = self.finished[-1]
        stream = Stream(
            self.more_pictures.records, section.batch_size, seed=config.seed, shuffle=True, name="supervised"
        )

        def draw(step: int) -> OfflineSamples:
            return learned.batch(stream.batch(step), self.engine.times, update=step, seed=config.seed)

        return Supervised(SFT(time_shift=section.time_shift), draw, section.coef)

    @cached_property
    def train_prompts(self) -> list[Prompt]:
        return super().train_prompts if self.pictures is None else self.pictures.prompts

    def media(self) -> Iterator[tuple[str, Media]]:
        for files in (self.pictures, self.more_pictures):
            if files is not None:
                yield from ((record.where, media) for record in files.read for media in record.pictures)

    def check_data(self) -> None:
        super().check_data()
        for i, teacher in enumerate(self.needs.teachers):
            check_teacher(self.config.model, teacher.path, teacher.lora, f"algorithm.teachers[{i}]")

    def made_up(self) -> np.ndarray:
        """A picture of shades, of the size that the run draws."""
        path, _ = read_index(self.config.model)
        height, width = self.config.rollout.height, self.config.rollout.width
        standard = standard_side(path) if height is None or width is None else 0
        rows, columns = np.indices((height or standard, width or standard))
        return np.stack([rows % 256, columns % 256, (rows + columns) // 2 % 256], -1).astype(np.uint8)

    def weight_files(self) -> tuple[str, list[Path]]:
        path, index = read_index(self.config.model)
        return str(index.get("_class_name")), sorted(path.glob("transformer/*"))

    def check(self) -> None:
        more = self.more_pictures.prompts if self.more_pictures else []
        texts = {text for p in (*self.train_prompts, *self.val_prompts, *more) for text in (p.text, p.negative)}
        self.roles.model.check(sorted(texts))
        super().check()
        _ = self.roles.teachers
        for data in self.finished:
            data.check()

    def try_out(self) -> None:
        job = replace(Job.groups(self.val_prompts[:1], 1, purpose="trial", update=0), steps=1)
        for _ in self.engine.sample(job):
            pass

    def read(self, files: str) -> list[Prompt]:
        prompts = read_prompts(resolve(files))
        for reward in self.config.rewards.values():
            reward.check(prompts)
        return prompts
