"""Running a suite: the policy's samples of its prompts, scored by its own scorers, batch after batch."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from burnish.evaluation.prompts import prompts_digest, read_suite_prompts
from burnish.evaluation.records import Folder, Header, Record
from burnish.evaluation.results import metrics_of, result_of
from burnish.evaluation.sanity_checks import questions, rows, unwatched, wrong_answers
from burnish.evaluation.suite import REWARD, Suite, read_suite
from burnish.rewards.base import RewardInputs
from burnish.rewards.scoring import Scorer, awaited
from burnish.rl.algorithm import Metrics
from burnish.tasks.evaluate import SHOWN
from burnish.training.ranks import Ranks
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled, UserError
from burnish.utils.paths import SUITES

HASHED = 1 << 16  # numbers of a tensor that tell it from others

Shard = tuple[int, int]  # number and count, counted from 1


@dataclass(frozen=True)
class Outcome:
    """Samples of a batch, with what is recorded of each."""

    scores: Scores
    said: Sequence[dict[str, Any]]  # of each sample, besides its scores
    samples: Sequence[Any]  # what is written into files; none of responses


class SuiteRunner:
    """A suite on the model of an assembly. A task says how it samples and what it keeps."""

    def __init__(self, assembly: Any, suite: Suite, prompts: Sequence[Prompt] | None = None) -> None:
        """Args: ``prompts`` are taken in place of those that the suite's files have."""
        self.assembly, self.suite = assembly, suite
        self.prompts = read_suite_prompts(suite) if prompts is None else list(prompts)
        self.scorer = Scorer(suite.scorers, assembly.config.scoring, around=lambda: assembly.stop.around())
        self._asked: tuple[list[str], list[str]] | None = None

    def check(self) -> None:
        """Refuse what can't be run, before any weights are loaded.

        Raises:
            UserError: the suite is for other models, or its scorers or the model can't take its prompts.
        """
        check_task(self.suite, self.assembly.config.task)
        for label, reward in self.suite.scorers.items():
            try:
                reward.check(self.prompts)
            except UserError as error:
                raise UserError(f"suite {self.suite.name}, scorer {label}: {error}") from None

    def run(
        self,
        target: Path,
        *,
        source: str,
        update: int | None,
        shard: Shard | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> dict[str, Any]:
        """Evaluate, or go on with an evaluation that was stopped; what came of it.

        Args:
            target: folder of the records.
            source: of the model, for readers of the result.
            update: policy updates behind the weights, where that is known.
            shard: which part of the suite; None is all of it.
            progress: called after every batch.

        Raises:
            Cancelled: on all ranks, where one was cancelled; what is recorded stays.
            UserError: the folder holds something else.
        """
        every, folder = self.assembly.ranks, Folder(target)
        ranks = every.rows
        header = self.header(source, update, shard)
        left = every.first(lambda: folder.begin(header))
        total = len(header.own())
        for start in range(0, len(left), ranks.size):
            units = left[start : start + ranks.size]
            mine = units[ranks.rank] if ranks.rank < len(units) else None
            shares = ranks.gather(self._attempt(header, mine, folder))
            if not all(shares):
                raise Cancelled
            if every.rank == 0:
                for (records,) in shares:
                    folder.append(records)
                progress(total - len(left) + start + len(units), total)
        if every.rank:
            return {}
        result = result_of(header, folder.complete())
        folder.finish(result)
        return result

    def header(self, source: str, update: int | None, shard: Shard | None) -> Header:
        """What is evaluated, and what the sanity checks say."""
        suite = self.suite
        wrong, unasked = self.assembly.ranks.first(self.sanity_checks)
        return Header(
            suite=suite.name, version=suite.version, changed=suite.changed, digest=suite.digest,
            prompts_digest=prompts_digest(self.prompts), prompts=len(self.prompts), n=suite.n,
            primary_metric=suite.primary_metric, aggregation=suite.aggregation, alive=suite.alive, unit=self.unit,
            settings=self.settings,
            source=source, model=self.assembly.identity | _weights(self.assembly), update=update,
            shard=None if shard is None else list(shard), wrong=wrong, unwatched=unasked,
        )  # fmt: skip

    def sanity_checks(self) -> tuple[list[str], list[str]]:
        """Which sanity checks were answered wrongly, and which scorers none of them looks at. They are asked once."""
        if self._asked is None:
            asked = questions(self.suite, self.prompts)
            found: list[str] = []
            if asked:
                every = rows(asked)
                samples, prompts = [sample for sample, _ in every], [prompt for _, prompt in every]
                pending = self.scorer.submit(samples, prompts, RewardInputs(made_up=True))
                scores = awaited(pending, self.assembly.stop.check)
                found = wrong_answers(asked, _columns(scores))
            self._asked = found, unwatched(self.suite, asked)
        return self._asked

    @property
    def batch_size(self) -> int:
        """Samples that are made at once."""
        return int(self.assembly.config.rollout.batch_size)

    @property
    def unit(self) -> int:
        """Prompts whose samples are made at once."""
        return max(1, self.batch_size // self.suite.n)

    def unit_job(self, indices: Sequence[int]) -> Any:
        """A job of the task's engine: the samples of prompts by their numbers."""
        n = self.suite.n
        prompts = [self.prompts[i] for i in indices for _ in range(n)]
        numbers = torch.arange(len(prompts))
        return self.job({
            "prompts": prompts, "group": numbers // n, "sample": numbers % n, "purpose": "validation", "update": 0,
            "check_cancelled": self.assembly.stop.check, "noise": self.suite.noise,
        })  # fmt: skip

    @property
    def settings(self) -> dict[str, Any]:
        """How it samples, in full."""
        raise NotImplementedError

    def job(self, fields: Mapping[str, Any]) -> Any:
        """A job of the task's engine, with the suite's settings."""
        raise NotImplementedError

    def sampled(self, job: Any) -> Outcome:
        """Sample and score."""
        raise NotImplementedError

    def write(self, folder: Path, stem: str, sample: Any) -> str:
        """Keep a sample in a file; its name."""
        raise NotImplementedError

    def close(self) -> None:
        """End the processes of the scorers."""
        self.scorer.close()

    def _attempt(self, header: Header, unit: int | None, folder: Folder) -> list[list[Record]]:
        try:
            with self.assembly.roles.shards.gathered_late(["policy"]):
                return [[] if unit is None else self._unit(header, unit, folder)]
        except Cancelled:
            return []

    def _unit(self, header: Header, unit: int, folder: Folder) -> list[Record]:
        """The records of a unit, which is sampled and scored as one batch whatever else is done."""
        indices, n = header.rows(unit), header.n
        job = self.unit_job(indices)
        found = self.sampled(job)
        columns = _columns(found.scores)
        records: list[Record] = []
        for row, prompt in enumerate(job.prompts):
            index, sample = indices[row // n], row % n
            record: Record = {
                "index": index, "sample": sample, "unit": unit, "key": prompt.uid, "task": prompt.source,
                "prompt": prompt.text, "answer": prompt.answer,
                "values": {name: values[row] for name, values in columns.items()},
                "note": found.scores.notes[row],
            }  # fmt: skip
            if found.samples and index < SHOWN:
                with writing(folder.media):
                    folder.media.mkdir(parents=True, exist_ok=True)
                    record["file"] = self.write(folder.media, f"{index:04d}-{sample:02d}", found.samples[row])
            records.append(record | found.said[row])
        return records


def check_task(suite: Suite, task: str) -> None:
    """Refuse a model that draws where responses are asked for, and the other way around."""
    if suite.task != task:
        raise UserError(
            f"suite {suite.name} is for task {suite.task}, but the model is of task {task}; "
            "give another suite (burnish eval --list)"
        )


def runners_of(assembly: Any) -> list[SuiteRunner]:
    """Of the suites that validations of a run have."""
    return [assembly.suite_runner(assembly, suite) for suite in suites_of(assembly.config)]


def suites_of(config: Any) -> list[Suite]:
    """The suites that validations of a run have, as they are used there."""
    options = config.validation
    suites = [subset(read_suite(name), options.suite_prompts) for name in options.suites]
    if twice := {one.name for one in suites if [other.name for other in suites].count(one.name) > 1}:
        raise UserError(f"validation.suites has two suites of the name {twice.pop()}; give one another name")
    return suites


def run_anew(runners: Sequence[SuiteRunner], ranks: Ranks, target: Path | None, *, source: str) -> Metrics:
    """Run suites below a folder, or one that is forgotten, whatever lies there; see ``SuiteRunner.run``."""
    metrics: Metrics = {}
    for runner in runners:
        with nullcontext(target) if target is not None else TemporaryDirectory() as folder:
            place = Path(folder) / SUITES / runner.suite.name
            ranks.first(partial(shutil.rmtree, place, ignore_errors=True))
            result = ranks.gather(runner.run(place, source=source, update=None))[0]
        metrics |= metrics_of(result)
    return metrics


def subset(suite: Suite, prompts: int | None) -> Suite:
    """A suite of fewer prompts, as it is used in training."""
    if prompts is None or (suite.max_prompts is not None and suite.max_prompts <= prompts):
        return suite
    return replace(suite, max_prompts=prompts, changed=sorted({*suite.changed, "max_prompts"}))


def _columns(scores: Scores) -> dict[str, list[float | None]]:
    """Values by name, with the weighted sum; None where they are missing."""
    sums = scores.reward.masked_fill(scores.missing, math.nan)
    named = {REWARD: sums} | dict(zip(scores.names, scores.components.T, strict=True))
    return {name: [None if value != value else value for value in column.tolist()] for name, column in named.items()}


def _weights(assembly: Any) -> dict[str, str]:
    """A hash of the trained weights, from the beginning of each tensor: which checkpoint it is, whatever its name."""
    if assembly.ranks.size > 1:  # where they are sharded; the update says which they are
        return {}
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(assembly.roles.parameters().items()):
        head = value.detach().flatten()[:HASHED].float().cpu()
        digest.update(f"{name} {list(value.shape)}".encode() + head.numpy().tobytes())
    return {"trained": digest.hexdigest()}
