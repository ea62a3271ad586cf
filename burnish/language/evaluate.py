"""Responses to held-out questions, always with the same random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.evaluation.records import sampled_settings
from burnish.language.algorithms.base import token_budget_batches
from burnish.language.engine import (
    NO_TOKENS,
    ResponseJob,
    dialogue_metrics,
    response_columns,
    said_tokens,
    sampled_for,
    sampling_of,
)
from burnish.language.offline import offline_batch
from burnish.metrics import given_metrics, length_metrics
from burnish.rewards.scoring import awaited
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Job
from burnish.tasks.evaluate import SAID, SHOWN, Evaluated, Evaluation, prompt_images
from burnish.types.completion import Lengths
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.video import encode_sound

KEPT_RATE, KEPT_SECONDS = 16000, 60  # of the sounds that are kept: samples per second, and how much


class LanguageEvaluation(Evaluation):
    """Responds; shows what the questions show, and tokens of the first responses.

    What metrics are made of is the response, with the row of ``Lengths`` that is its own.
    """

    def check(self) -> None:
        super().check()
        if self.assembly.config.environment is not None:
            raise UserError(
                f"suite {self.suite.name} asks single questions, but the run has an environment, which would answer; "
                "evaluate its exported model (burnish export)"
            )

    def job(self, n: int, guidance: float | None = None) -> Job:
        sampling = sampling_of(self.assembly.config, self.assembly.config.validation)
        if self.suite:
            names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p")
            sampling = replace(sampling, **{name: self.settings[name] for name in names})
        return self.groups(ResponseJob, n, sampling=sampling)

    @property
    def settings(self) -> dict[str, Any]:
        config = self.assembly.config
        own = {"max_new_tokens": config.rollout.max_new_tokens}
        return sampled_settings(self.suite, own) | {
            "batch_size": config.rollout.batch_size, "stop": list(config.rollout.stop), "dtype": config.model.dtype,
            "engine": config.rollout.engine,
        }  # fmt: skip

    def sampled(self, job: Any) -> Evaluated:
        assembly, check_cancelled = self.assembly, self.assembly.stop.check
        if self.suite:  # scored as one batch, whatever response ends first
            completion, responses = assembly.engine.sample(job)
            scores, said = awaited(self.scorer.submit(responses, job.prompts), check_cancelled), {}
        else:
            completion, responses, scoring = sampled_for(job, assembly.engine, self.scorer, assembly.tell)
            kept = ((job.group < SHOWN) & (job.sample < SAID)).nonzero().flatten().tolist()
            said = said_tokens(completion, kept, assembly.engine, job.sampling.scored_at)
            scores = scoring.scores(check_cancelled)
        lengths = completion.lengths
        known = [(response, lengths.select([row])) for row, response in enumerate(responses)]
        return Evaluated(scores, known, [said.get(row, NO_TOKENS) for row in range(len(known))])

    def metrics(self, job: Job, evaluated: Evaluated) -> Metrics:
        responses, lengths = zip(*evaluated.known, strict=True)
        more = length_metrics(Lengths.cat(lengths)) | dialogue_metrics(responses)
        return given_metrics(evaluated.scores, job.prompts, "format") | {f"val-aux/{k}": v for k, v in more.items()}

    def measured(self, job: Job, evaluated: Evaluated) -> Mapping[str, Sequence[float]]:
        return {"tokens": [int(lengths.response) for _, lengths in evaluated.known]}

    def keep(self, target: Path, job: Job, n: int, evaluated: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        records, names = [], []
        for i, (prompt, (response, lengths)) in enumerate(zip(job.prompts[:shown], evaluated.known, strict=False)):
            group, sample = int(job.group[i]), int(job.sample[i])
            if i % n == 0:
                names = _keep_media(target / "pictures", prompt, group)
            after = response.dialogue.images if response.dialogue is not None else ()
            own = _keep_images(target / "pictures", after, f"{group:03d}-{sample:02d}")
            text = {"prompt": prompt.turns[-1].text, "response": response.full_text, "finished": response.finished}
            records.append(text | {"tokens": int(lengths.response), "images": names + own} | evaluated.shown[i])
        return records

    def keep_file(self, folder: Path, job: Job, evaluated: Evaluated, row: int) -> Mapping[str, Any]:
        response, lengths = evaluated.known[row]
        return {**response_columns(response, int(lengths.response)), **evaluated.shown[row]}

    def keep_of_suite(self, folder: Path, stem: str, evaluated: Evaluated, row: int) -> dict[str, Any]:
        response, lengths = evaluated.known[row]
        return {"response": response.text, "finished": response.finished, "tokens": int(lengths.response)}


def _keep_media(folder: Path, prompt: Prompt, group: int) -> list[str]:
    """Keep what a question shows and plays; names of the files."""
    names = _keep_images(folder, [image for _, image in prompt_images(prompt)], f"{group:03d}")
    with writing(folder):
        for number, sound in enumerate(prompt.audios):
            heard = sound.audio(KEPT_RATE)[: KEPT_SECONDS * KEPT_RATE]
            names.append(f"{group:03d}-{number}.wav")
            (folder / names[-1]).write_bytes(encode_sound(heard[None], KEPT_RATE))
    return names


def _keep_images(folder: Path, images: Sequence[Any], stem: str) -> list[str]:
    names = [f"{stem}-{number}.png" for number in range(len(images))]
    with writing(folder):
        for name, image in zip(names, images, strict=True):
            image.save(folder / name)
    return names


class JudgementEvaluation(Evaluation):
    """Has the reward model judge held-out responses; a sample is a record, with scores [M, S, H] of its responses."""

    def job(self, n: int, guidance: float | None = None) -> Job:
        return self.groups(Job, 1)

    def sampled(self, job: Job) -> Evaluated:
        assembly = self.assembly
        records = [assembly.val_records[number] for number in job.group.tolist()]
        batch: Any = offline_batch(
            records, assembly.roles.model, assembly.engine.encode, update=1, seed=assembly.config.seed
        )
        members = batch.answers.members
        values = torch.zeros(len(records), members, *batch.target.shape[1:])
        with torch.no_grad():
            for rows in token_budget_batches(batch.answers.trace, assembly.roles.micro_batch_size, together=members):
                job.check_cancelled()
                part = batch.select(rows)
                judged = part.at_labels(assembly.roles.judgements(part.answers.trace))
                values[rows] = judged.cpu().view(len(rows), *values.shape[1:])
        outcome = assembly.config.algorithm.outcome(values.flatten(0, 1), batch)
        outcome = {name: one.masked_fill(batch.target.isnan(), math.nan) for name, one in outcome.items()}
        return Evaluated(_scores(outcome, assembly.needs.heads), list(zip(records, values, strict=True)), [])

    def keep(self, target: Path, job: Job, n: int, evaluated: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        records = []
        for i, (prompt, (record, scores)) in enumerate(zip(job.prompts[:shown], evaluated.known, strict=False)):
            names = _keep_media(target / "pictures", prompt, int(job.group[i]))
            values = [
                ", ".join(f"{value:.3f}" for value in one[: len(record.target)].flatten().tolist()) for one in scores
            ]
            sides = ("chosen ", "rejected ") if len(record.responses) > 1 else ("",)
            text = "\n".join(map("{}{}: {}".format, sides, values, record.responses))
            records.append({"prompt": prompt.turns[-1].text, "response": text, "images": names})
        return records

    def metrics(self, job: Job, evaluated: Evaluated) -> Metrics:
        needs, judgements = self.assembly.needs, evaluated.known
        scores = torch.cat([scores[:, : len(record.target)].flatten(0, 1) for record, scores in judgements]).double()
        metrics: Metrics = {}
        for number, (name, column) in enumerate(zip(needs.heads, scores.unbind(1), strict=True)):
            metrics[f"val-aux/score/{name}/mean"] = float(column.mean())
            metrics[f"val-aux/score/{name}/std"] = float(column.std(correction=0))
            if needs.data == "scores":
                pairs = [(float(values[0, 0, number]), record.target[0][number]) for record, values in judgements]
                labelled = torch.tensor([pair for pair in pairs if not math.isnan(pair[1])]).double()
                metrics[f"val-aux/rank_correlation/{name}"] = rank_correlation(labelled)
        return metrics


def rank_correlation(pairs: Tensor) -> float:
    """Spearman's correlation of two columns [N, 2]; 0 where one is constant."""
    from scipy.stats import spearmanr

    if len(pairs) < 2 or bool((pairs == pairs[0]).all(0).any()):
        return 0.0
    return float(spearmanr(*pairs.unbind(1)).statistic)


def _scores(outcome: Mapping[str, Tensor], heads: Sequence[str]) -> Scores:
    """What validation reports of records, [B, S, H] each, the first counting; by head too where there are several."""
    columns = {name: values.flatten(1).nanmean(1) for name, values in outcome.items()}
    counted = next(iter(outcome))
    if len(heads) > 1:
        columns |= {f"{counted}_{head}": outcome[counted][:, :, i].nanmean(1) for i, head in enumerate(heads)}
    reward = columns[counted]
    return Scores(
        reward=reward.float(),
        missing=reward.isnan(),
        components=torch.stack(list(columns.values()), 1).float(),
        names=tuple(columns),
        weights=(0.0,) * len(columns),
        notes=[""] * len(reward),
    )
