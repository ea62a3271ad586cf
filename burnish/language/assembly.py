"""A run that trains a model that sees, or one that only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from burnish.data.questions import read_questions, within_length
from burnish.data.scored import check_groups, draw_members, scored_groups
from burnish.data.stream import Stream
from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.algorithms.sft import SFT
from burnish.language.config import LanguageConfig
from burnish.language.dialogues import Dialogues, try_out
from burnish.language.encode import Encoder, Readers, SharedPrompts, check_positions, prompt_lengths
from burnish.language.engine import (
    LanguageEngine,
    ResponseEngine,
    ResponseJob,
    ResponseRollouts,
    rollout_sampling,
    sampling_of,
)
from burnish.language.evaluate import JudgementEvaluation, LanguageEvaluation
from burnish.language.model.base import Positions
from burnish.language.model.chat import check_messages
from burnish.language.model.loading import (
    check_mixture,
    check_readable,
    check_split,
    load_language_model,
    load_outline,
    match_layers,
    positions_of,
    read_config,
    refuse_shown,
)
from burnish.language.model.processors import image_tokens, load_processor
from burnish.language.model.reward_head import HeadFile, reward_loading_lines, write_about, write_head_of_adapter
from burnish.language.model.tokenizer import check_vocabulary, copy_words, reading_lines
from burnish.language.model.universal import LanguageModel
from burnish.language.offline import (
    Encode,
    check_tokens_of,
    offline_batch,
    prompts_of,
    scored_batch,
    short_records,
)
from burnish.language.records import ResponseRecord, read_records
from burnish.language.roles import LanguageRoles
from burnish.language.routing import check_replay
from burnish.language.teacher_inputs import HINDSIGHT, check_teachers
from burnish.rewards.text.base import POLICY, Dialogue, Response
from burnish.rollout.sources import Job
from burnish.tasks.assembly import Assembly
from burnish.training.experts import check_experts
from burnish.training.optimizer import ParameterGroup
from burnish.training.ranks import own_rows
from burnish.training.trainer import AuxiliaryLoss, learned_in_an_update
from burnish.types.media import Media
from burnish.types.prompt import LabelledTools, Prompt, Prompts
from burnish.utils.errors import UserError

DUMMY = "A placeholder response, to try the rewards before the run begins."


class LanguageAssembly(Assembly):
    """Prompts, networks, engine and source of a language model."""

    config: LanguageConfig
    library = "transformers"

    def __init__(self, config: LanguageConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.measures_prompts = config.data.max_prompt_length is not None
        self.has_separate_engine = config.rollout.vllm is not None
        self.reads_ahead = config.data.workers > 0
        self.suite_runner = LanguageEvaluation
        self._lock = Lock()
        self.evaluation = JudgementEvaluation if self.needs.heads else LanguageEvaluation

    def load_roles(self, model: LanguageModel | None = None) -> LanguageRoles:
        options = self.config.model
        loaded = model or load_language_model(options, shared=self.sharded, only_samples=self.only_samples)
        return LanguageRoles(loaded, self.needs, self.config, shared=self.sharded)

    def match_layers(self, outline: LanguageModel) -> None:
        match_layers(outline, self.config.model)
        if (size := self.config.sharding.expert_parallel) > 1:
            check_experts(outline.layers(outline.network), size, f"sharding.expert_parallel is {size}")

    @cached_property
    def engine(self) -> ResponseEngine:
        config, roles = self.config, self.roles
        if config.rollout.vllm is not None:
            from burnish.language.vllm.engine import VllmEngine

            engine: ResponseEngine = VllmEngine(
                roles, config.rollout.vllm, path=read_config(config.model)[0], seed=config.seed,
                example=self._compared, lora=config.model.lora,
            )  # fmt: skip
        else:
            engine = LanguageEngine(roles, batch_size=config.rollout.batch_size, seed=config.seed)
        self._until_closed.callback(engine.close)
        if config.environment is not None:
            self._until_closed.callback(config.environment.close)
            engine.dialogues = Dialogues(engine, config.environment)
        if self.reads_ahead and isinstance(engine.encode, Encoder):
            engine.encode.readers = Readers(config, engine.encode.tools)
        return engine

    def _compared(self) -> Prompt:
        """What an engine of its own is compared with when weights are published.

        With media if a prompt has any that is short enough, in rollout workers too: the weights of a vision tower show
        in nothing else.
        """
        if self.roles.model.readable:
            encode, longest = Encoder(self.roles.model, self._tools, cached=0), self.config.data.max_prompt_length
            for prompt in self.train_prompts.kinds:
                if prompt.media and (longest is None or encode([prompt]).table.lengths[0] <= longest):
                    return prompt
        return Prompt(text="What is this?")

    @property
    def publisher(self) -> ResponseEngine:
        return self.engine

    @contextmanager
    def trained_weights(self) -> Iterator[None]:
        # an engine of its own has the weights of the last step, not their average; 0 where nothing is trained here
        version = self.workers.version if "workers" in vars(self) else 0
        with super().trained_weights():
            if self.ema is not None:
                self.engine.sync_weights(version)
            yield
        if self.ema is not None:
            self.engine.sync_weights(version)

    @cached_property
    def groups(self) -> list[ParameterGroup]:
        config, frozen = self.config, self.config.critic.warmup_updates if self.needs.critic else 0
        _ = self.roles.teachers.all  # who trains asks them, from the first update on: they are loaded now
        actor = ParameterGroup(
            "actor", self.roles.parameters(), config.optimizer,
            total_steps=max(config.schedule_steps(config.optimizer) - frozen * config.steps_per_update, 1),
            first_update=frozen + 1,
        )  # fmt: skip
        if not self.needs.critic:
            return [actor]
        critic, options = self.roles.parameters("critic"), config.critic.optimizer
        return [actor, ParameterGroup("critic", critic, options, total_steps=config.schedule_steps(options))]

    @cached_property
    def rollout_worker(self) -> ResponseRollouts:
        return ResponseRollouts(
            self.engine, self.scorer, self.needs,
            sampling=rollout_sampling(self.config), environment=self.config.environment, watch=self.watch,
            check_cancelled=self.stop.check, files=self.sample_files, ahead=self.config.async_rollout,
        )  # fmt: skip

    @cached_property
    def responses(self) -> list[ResponseRecord]:
        """Responses that the algorithm learns from in place of prompts."""
        data = self.config.data
        if self.config.online:
            return []
        groups = self.limited(self._grouped(read_records(data.train_files, data, self.needs)))
        if data.scores:
            check_groups(groups, self.config)
        return self._members(groups)

    def _grouped(self, records: Sequence[ResponseRecord]) -> Sequence[Any]:
        """What a stream shuffles: records, or those of a prompt together where they have scores."""
        weights = self.config.data.scores
        return scored_groups(records, weights) if weights else records

    def _members(self, records: Sequence[Any]) -> list[ResponseRecord]:
        """The single records of what a stream shuffles."""
        return [member for group in records for member in group.members] if self.config.data.scores else list(records)

    @cached_property
    def val_records(self) -> list[ResponseRecord]:
        """Held-out responses that a reward model is validated on; those that it learns from where there are none."""
        data = self.config.data
        records = read_records(data.val_files, data, self.needs) if data.val_files else self.responses
        return records[: self.config.validation.max_prompts]

    @cached_property
    def imitated(self) -> list[ResponseRecord]:
        """Responses that are imitated beside."""
        section, needs = self.config.supervised, LanguageNeeds(data="demonstrations")
        return [] if section is None else read_records(section.train_files, self.config.data, needs)

    @cached_property
    def _learnable(self) -> list[list[ResponseRecord]]:
        """Responses that are learned from, and those that are imitated beside, as far as they are short enough."""
        return [
            short_records(own, lambda: self._reader, self.config, self._tools, self.ranks)
            for own in (self.responses, self.imitated)
        ]

    @cached_property
    def records(self) -> Sequence[Any]:
        return self._grouped(self._learnable[0])

    @cached_property
    def _encode(self) -> Encode:
        """Prompts of given responses, which all ranks need."""
        encode = self.engine.encode
        return encode if self.ranks.size == 1 else SharedPrompts(encode, self.ranks)

    def prepare(self, records: list[Any], update: int) -> Any:
        config, model = self.config, self.roles.model
        if config.data.scores:
            records = draw_members(records, config.rollout.n, update=update, seed=config.seed)
            batch: Any = scored_batch(records, model, self._encode, config, update=update)
        else:
            batch = offline_batch(records, model, self._encode, update=update, seed=config.seed)
        if self.ranks.size > 1:
            # what they show is read now; what else is needed of it, where it is
            costs = (batch.trace if config.data.scores else batch.answers).costs()
            if own := learned_in_an_update(self._members(records), costs, config, self.ranks.rows, update):
                self.engine.encode(prompts_of(own))
        if self.reads_ahead:
            following = self.source.stream.peek(self.config.batches_per_update)
            self.engine.ahead(prompts_of(self._members(following[own_rows(self.ranks.rows, len(following))])))
        return batch

    @cached_property
    def auxiliary(self) -> AuxiliaryLoss | None:
        section, config = self.config.supervised, self.config
        if section is None:
            return None
        stream = Stream(self._learnable[1], section.batch_size, seed=config.seed, shuffle=True, name="ptx")

        def draw(step: int) -> Any:
            records = stream.batch(step)
            return offline_batch(records, self.roles.model, self._encode, update=step, seed=config.seed)

        imitation = SFT(weighting=self.needs.imitates or "equal")
        return AuxiliaryLoss(imitation, draw, section.coef, metric="actor/ptx_loss")

    @cached_property
    def train_prompts(self) -> Prompts:
        if self.config.online:
            return super().train_prompts
        prompts = Prompts.of({record.prompt.uid: record.prompt for record in self.responses}.values())
        if self.config.data.val_files is None:
            self._check_rewards(prompts)  # they are what is validated on
        return prompts

    @property
    def all_records(self) -> Sequence[Any]:
        return super().all_records if self.config.online else self._grouped(self.responses)

    @cached_property
    def val_prompts(self) -> Prompts:
        if self.needs.heads:
            return Prompts.of(record.prompt for record in self.val_records)
        return super().val_prompts

    def check_data(self) -> None:
        config = self.config
        every = (*self.train_prompts.kinds, *self.val_prompts.kinds, *prompts_of([*self.responses, *self.imitated]))
        if config.environment is not None:
            config.environment.check()
            config.environment.check_prompts((*self.train_prompts, *self.val_prompts))
        if coef := config.model.router_aux_loss_coef:
            check_mixture(self._reader, f"model.router_aux_loss_coef is {coef:g}")
        if config.rollout.router_replay:
            check_mixture(self._reader, "rollout.router_replay is true")
            check_replay(self._reader.network)
        if config.sharding.context_parallel > 1:
            check_split(config.model, config.sharding.context_parallel)
        check_vocabulary(config.model)
        check_teachers(config.model, self.needs, self.train_prompts)
        check_readable(config.model, every)
        super().check_data()
        check_messages(lambda: self._reader, every, self._tools)
        if self.reads_ahead and next(self.media(), None) is None:
            raise UserError(
                f"data.workers is {config.data.workers}, but no record shows or plays anything that processes "
                "could read ahead; remove it"
            )
        check_tokens_of(self.responses, lambda: self._reader)
        here = config.runtime == "local" and self.ranks.size == 1  # else ranks share the work
        if here:
            _ = self._learnable, self.learnable_prompts
        if (positions := positions_of(config.model)) is not None and (here or not self.measures_prompts):
            self._check_room(positions)

    def _check_room(self, positions: Positions) -> None:
        """Refuse questions that leave the model too few positions for the responses that are sampled to them.

        Responses that are given are measured elsewhere.
        """
        config = self.config
        most, vllm = config.rollout.max_new_tokens, config.rollout.vllm
        if vllm is not None and vllm.max_model_len is not None and vllm.max_model_len < positions.most:
            positions = Positions(vllm.max_model_len, "rollout.vllm.max_model_len")
        left = positions.most - most
        limit = f"set data.max_prompt_length={left} and data.overlong=filter" if left > 0 else ""
        judged = self.needs.heads or not config.validates
        # a teacher may read another response between a question and the response
        read = most + HINDSIGHT if any(teacher.reads_more for teacher in self.needs.teachers) else 0
        for prompts, room, instead in (
            (self.learnable_prompts, most + read if config.online else 1, limit),
            (self.val_prompts, 1 if judged else most, "give others in data.val_files"),
        ):
            check_positions(prompts, positions, self._reader, self._tools, room=room, instead=instead)

    @property
    def _reader(self) -> LanguageModel:
        """What reads prompts: the model, or its outline before it is loaded."""
        return self.roles.model if "roles" in vars(self) else self.outline

    @cached_property
    def outline(self) -> LanguageModel:
        return load_outline(self.config.model)

    def check(self) -> None:
        super().check()
        model = self.roles.model
        known = model.capabilities
        if self.config.rollout.router_replay:
            recorded = known.packed and (known.fast or self.config.rollout.vllm is not None)
            check_replay(model.network, recorded=recorded)
        self._check_room(Positions(model.max_positions, model.position_limit))
        # templates and processors are the model's own: they are tried on the first prompt of each kind
        kinds = {
            (bool(p.images), bool(p.videos), bool(p.audios)): p
            for p in reversed((*self.train_prompts.kinds, *self.val_prompts.kinds))
        }
        self.engine.encode(list(kinds.values()))

    def trial(self) -> None:
        if self.needs.heads:
            self.evaluation(self).sampled(Job.groups(self.val_prompts[:1], 1, purpose="trial", update=0))
            return
        if self.engine.dialogues is not None or not isinstance(self.engine, LanguageEngine):  # vLLM
            return
        sampling = replace(sampling_of(self.config, self.config.validation), max_new_tokens=1)
        self.engine.sample(ResponseJob.groups(self.val_prompts[:1], 1, purpose="trial", update=0, sampling=sampling))

    def media(self) -> Iterator[tuple[str, Media]]:
        given = (record.prompt for record in (*self.responses, *self.imitated))
        for prompt in (*self.train_prompts.kinds, *self.val_prompts.kinds, *given):
            yield from ((prompt.where, media) for media in prompt.media)

    def unfit(self, width: int, height: int) -> str:
        with self._lock:  # several threads ask
            processor = self._processor
        try:
            image_tokens(processor, width, height)
        except ValueError as error:
            return f"is {width} x {height} pixels, which this model's processor refuses: {error}"
        return ""

    @cached_property
    def _processor(self) -> Any:
        return load_processor(read_config(self.config.model)[0])

    @cached_property
    def learnable_prompts(self) -> Prompts:
        prompts = self.train_prompts
        if not self.measures_prompts:
            return prompts
        encode = Encoder(self._reader, self._tools, cached=0)
        return within_length(prompts, prompt_lengths(encode, prompts, self.ranks), self.config.data)

    @cached_property
    def _tools(self) -> LabelledTools:
        return self.config.environment.tools() if self.config.environment is not None else {}

    def probe(self) -> None:
        if not self.config.scored:
            return
        environment = self.config.environment
        if environment is not None and try_out(environment, self.train_prompts[0], DUMMY):
            refuse_shown(self.config.model, "environment shows images or videos")
        super().probe()

    def dummy_sample(self) -> Response:
        talks = self.config.environment is not None
        return Response(DUMMY, dialogue=Dialogue(((POLICY, DUMMY),), (0.0,)) if talks else None)

    def weight_files(self) -> tuple[str, list[Path]]:
        path, config = read_config(self.config.model)
        return str(config.get("model_type")), sorted(path.glob("*.safetensors"))

    def read(self, files: Any) -> Prompts:
        prompts = read_questions(files, self.config.data)
        self._check_rewards(prompts)
        return prompts

    def _check_rewards(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that a reward can't score."""
        if not self.config.scored:
            return
        for reward in self.config.rewards.values():
            reward.check(prompts)

    def save(self, target: Path, weights: dict[str, Tensor]) -> None:
        head = self.roles.reward_head
        self.roles.model.save(target, weights, head=None if head is None else head.weight)
        if head is not None:
            write_about(target, self._head_file)

    def save_adapter(self, target: Path) -> None:
        super().save_adapter(target)
        copy_words(self.config.model, self.roles.model.path, target)
        if self.roles.reward_head is not None:
            write_head_of_adapter(target, self.roles.reward_head.weight, self._head_file, self.weight_files()[0])

    @property
    def _head_file(self) -> HeadFile:
        needs, data = self.needs, self.config.data
        pixels = (data.min_pixels, data.max_pixels) if needs.question else (None, None)
        return HeadFile(list(needs.heads), needs.shares, needs.separator, needs.question, *pixels)

    def loading_lines(self, base: Path, adapter: Path | None) -> list[str]:
        kind = type(self.roles.model.network).__name__
        if self.needs.heads:
            return reward_loading_lines(base, adapter, kind, self.weight_files()[0], len(self.needs.heads))
        load = [f'model = {kind}.from_pretrained("{base}")', *reading_lines(self.config.model, base, adapter)]
        return [*load, *([] if adapter is None else [f'model = peft.PeftModel.from_pretrained(model, "{adapter}")'])]
