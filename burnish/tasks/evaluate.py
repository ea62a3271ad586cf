"""Evaluation: prompts are sampled, always from the same random numbers, and scored, by every rank its own share.

A validation is of the run's held-out prompts and rewards. A suite has prompts, scorers, settings and seeds of its own;
it is done in units, so that one that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from PIL import Image

from burnish.evaluation.records import Folder, Header, Record, Shard, metrics_of, result_of
from burnish.evaluation.sanity_checks import REWARD, questions, rows, unwatched, wrong_answers
from burnish.evaluation.suite import Suite, check_task, prompts_digest, read_suite_prompts
from burnish.metrics import validation_metrics
from burnish.rewards.base import RewardInputs
from burnish.rewards.scoring import Scorer, awaited
from burnish.rl.algorithm import Metrics
from burnish.rollout.sources import Job
from burnish.tasks.sample_files import known_or_none, scores_of_row, write_lines
from burnish.training.ranks import own_rows
from burnish.types.prompt import Prompt
from burnish.types.rollout import Scores
from burnish.utils.disk import writing
from burnish.utils.errors import Cancelled, UserError
from burnish.utils.paths import SUITES, VALIDATION
from burnish.utils.reading import checked_path

SHOWN = 16  # prompts whose samples are kept
FRAMES = 4  # of a prompt's video that are kept
LONGEST = 2000  # characters of a prompt in the list of all
SAID, TOKENS = 2, 256  # samples of a prompt whose tokens are kept, and how many of each
HASHED = 1 << 16  # numbers of a tensor that tell it from others

T = TypeVar("T")
J = TypeVar("J", bound=Job)


@dataclass
class Evaluated:
    """Samples of a job, in the order of its rows. What they are is the task's affair."""

    scores: Scores
    known: list[Any]  # of each sample, on all ranks: what metrics are made of
    shown: list[Any]  # of each sample, on the rank that keeps it alone: what is written of it; None of most


class Evaluation:
    """Samples and scores prompts; keeps scores of all samples, and the samples of the first prompts."""

    suite: Any  # None is a validation
    # of a task
    job: Callable[..., Any]  # N samples of every prompt, with a generator's guidance; see ``groups``
    sampled: Callable[[Any], Evaluated]  # of a job of one prompt at least: sampled and scored in this process
    metrics: Callable[[Any, Evaluated], Metrics]  # what is reported besides rewards
    keep: Callable[[Path, Any, int, Evaluated, int], Sequence[dict[str, Any]]]  # write what the first samples show
    keep_file: Callable[[Path, Any, Evaluated, int], Mapping[str, Any]]  # write one sample in full
    keep_of_suite: Callable[[Path, str, Evaluated, int], dict[str, Any]]  # write one of a suite if it is shown
    settings: Any  # how a suite is sampled, in full

    def __init__(self, assembly: Any, suite: Suite | None = None, prompts: Sequence[Prompt] | None = None) -> None:
        """A validation of a run, or a suite on its model.

        Args:
            assembly: of the run.
            suite: None is a validation.
            prompts: taken in place of those that the suite's files have.
        """
        self.assembly, self.suite = assembly, suite
        if prompts is None:
            prompts = assembly.val_prompts if suite is None else read_suite_prompts(suite)
        self.prompts = prompts

    def prepare(self, job: Any) -> None:
        """Do what a job needs before ranks gather networks."""

    @cached_property
    def scorer(self) -> Any:
        """Who scores: the run's scorer, or one of the suite's own."""
        suite, assembly = self.suite, self.assembly
        own = suite and Scorer(suite.scorers, assembly.config.scoring, around=assembly.stop.waiting)
        return own or assembly.scorer

    @property
    def shown(self) -> int:
        """Prompts whose samples are kept, of whatever kind."""
        files = None if self.suite else self.assembly.validation_files
        return SHOWN if files is None else max(SHOWN, files.options.prompts)

    def groups(self, kind: type[J], n: int, **how: Any) -> J:
        """A job of the task's engine, which samples as ``how`` says."""
        job = kind.groups(
            self.prompts, n, purpose="validation", update=0, check_cancelled=self.assembly.stop.check,
            noise=self.suite and self.suite.noise, **how,
        )  # fmt: skip
        # of a suite, a sample's seeds depend on nothing else that is in it
        return replace(job, sample=job.sample % n) if self.suite else job

    def measured(self, job: Job, evaluated: Evaluated) -> Mapping[str, Sequence[float]]:
        """What is known of each sample besides its scores, by name; NaN where it is not."""
        return {}

    def __call__(self, target: Path | None, *, n: int, guidance: float | None = None) -> Metrics:
        """Validate. Several ranks share the prompts out, and all of them get the metrics; the first one keeps samples.

        Args:
            target: folder for samples and scores, if any.
            n: samples of a prompt.
            guidance: classifier-free guidance of a generator; None takes the run's.
        """
        assembly, job = self.assembly, self.job(n, guidance)
        evaluated = self._shared_out(job)
        if target is not None and assembly.ranks.rank == 0:
            with writing(target):
                (target / "pictures").mkdir(parents=True, exist_ok=True)
                write_lines(target / "scores.jsonl", self._scores(job, n, evaluated))
                write_lines(target / "prompts.jsonl", _prompts(job))
            kept = list(self._samples(target, job, n, evaluated))
            with writing(target):
                write_lines(target / "samples.jsonl", kept, ascii=True)
            files, own = assembly.validation_files, checked_path(assembly.config.output_dir) / VALIDATION
            if files is not None and guidance is None and target.parent == own:  # a validation of the run's
                update = int(target.name)
                files.keep(
                    update, job.prompts, job.group, job.sample, evaluated.scores,
                    lambda folder, row: self.keep_file(folder, job, evaluated, row),
                    version=update, drawn=job.seeds(assembly.config.seed),
                )  # fmt: skip
        missing, more = evaluated.scores.missing, self.metrics(job, evaluated)
        return (
            validation_metrics(evaluated.scores, job.prompts)
            | dict(more)
            | {"val-aux/missing": float(missing.float().mean()), "val-aux/num_samples": float(len(missing))}
        )

    def _gathered(self, work: Callable[[], T]) -> list[T]:
        """What the work of each rank gives, in order, while the policy's weights are gathered, if these sample.

        Raises:
            Cancelled: on all ranks, where one was cancelled. None may leave the others waiting for it.
        """
        shards = self.assembly.roles.shards
        try:
            with nullcontext() if self.assembly.has_separate_engine else shards.gathered(["policy"]):
                own = [work()]
        except Cancelled:
            own = []
        shares = self.assembly.sampling_ranks.gather(own)
        if not all(shares):
            raise Cancelled
        return list(chain.from_iterable(shares))

    def _shared_out(self, job: Job) -> Evaluated:
        """What all ranks make of their shares, in their order."""
        ranks = self.assembly.sampling_ranks
        share, shown = job.share(partial(own_rows, ranks)), list[Any]()
        self.prepare(share)

        def work() -> Evaluated | None:
            if not share.prompts:
                return None
            evaluated: Evaluated = self.sampled(share)
            shown.extend(evaluated.shown)
            return replace(evaluated, shown=[])

        every = [evaluated for evaluated in self._gathered(work) if evaluated is not None]
        scores, normaliser = Scores.cat([evaluated.scores for evaluated in every]), self.assembly.normaliser
        return Evaluated(
            scores if normaliser is None else normaliser.validated(scores),
            [sample for evaluated in every for sample in evaluated.known],
            list(chain.from_iterable(ranks.to_first(shown))),
        )

    def _scores(self, job: Job, n: int, evaluated: Evaluated) -> Iterator[Mapping[str, Any]]:
        """A record for each sample, by which two evaluations are compared prompt by prompt."""
        measured = self.measured(job, evaluated)
        for i, (prompt, number) in enumerate(zip(job.prompts, job.group.tolist(), strict=True)):
            reward, values = _with_further(evaluated.scores, i)
            values |= {name: known_or_none(column[i]) for name, column in measured.items()}
            yield {"index": number, "sample": i % n, "source": prompt.source, "reward": reward, "values": values}

    def _samples(self, target: Path, job: Job, n: int, evaluated: Evaluated) -> Iterator[Mapping[str, Any]]:
        kept = self.keep(target, job, n, evaluated, min(len(evaluated.known), SHOWN * n))
        for i, extra in enumerate(kept):
            reward, components = _with_further(evaluated.scores, i)
            about: dict[str, Any] = {"prompt": job.prompts[i].text, "answer": job.prompts[i].answer}
            about |= {"index": int(job.group[i]), "sample": i % n}
            yield about | extra | {"reward": reward, "components": components, "note": evaluated.scores.notes[i]}

    # suites

    def check(self) -> None:
        """Refuse a suite that can't be run, before any weights are loaded.

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
        shard: Shard = (1, 1),
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> dict[str, Any]:
        """Evaluate a suite, or go on with an evaluation that was stopped; what came of it.

        Args:
            target: folder of the records.
            source: of the model, for readers of the result.
            update: policy updates behind the weights, where that is known.
            shard: which part of the suite, as its number and how many there are.
            progress: called after every batch.

        Raises:
            Cancelled: on all ranks, where one was cancelled; what is recorded stays.
            UserError: the folder holds something else.
        """
        every, folder = self.assembly.ranks, Folder(target, shard)
        ranks, header = self.assembly.sampling_ranks, self._header(source, update)
        job = self.job(header.n)
        left = every.first(lambda: folder.begin(header))
        total = len(range(shard[0] - 1, header.units, shard[1]))
        for start in range(0, len(left), ranks.size):
            units = left[start : start + ranks.size]
            own = units[ranks.rank : ranks.rank + 1]
            shares = self._gathered(partial(self._records, header, job, own, folder))
            if every.rank == 0:
                folder.append(list(chain.from_iterable(shares)))
                progress(total - len(left) + start + len(units), total)
        if every.rank:
            return {}
        header, records, missing = folder.found()
        result = result_of(header, records)
        if not missing:
            folder.finish(result)
        return result

    def _header(self, source: str, update: int | None) -> Header:
        """What is evaluated, and what the sanity checks say."""
        suite, assembly = self.suite, self.assembly
        wrong, unasked = assembly.ranks.first(lambda: self.sanity_checks)
        return Header(
            suite=suite.name, version=suite.version, changed=suite.changed, digest=suite.digest,
            prompts_digest=prompts_digest(self.prompts), prompts=len(self.prompts), n=suite.n,
            primary_metric=suite.primary_metric, aggregation=suite.aggregation, alive=suite.alive, unit=self.unit,
            settings=self.settings,
            source=source, model=assembly.identity | _weights(assembly), update=update,
            wrong=wrong, unwatched=unasked,
        )  # fmt: skip

    @cached_property
    def sanity_checks(self) -> tuple[list[str], list[str]]:
        """Which sanity checks were answered wrongly, and which scorers none of them looks at. They are asked once."""
        asked = questions(self.suite, self.prompts)
        wrong: list[str] = []
        if asked:
            samples, prompts = zip(*rows(asked), strict=True)
            pending = self.scorer.submit(samples, prompts, RewardInputs(made_up=True))
            scores = awaited(pending, self.assembly.stop.check)
            wrong = wrong_answers(asked, [_with_reward(scores, row) for row in range(len(samples))])
        return wrong, unwatched(self.suite, asked)

    @property
    def unit(self) -> int:
        """Prompts of a suite whose samples are made at once."""
        return max(1, int(self.assembly.config.rollout.batch_size // self.suite.n))

    def _records(self, header: Header, job: Job, units: Sequence[int], folder: Folder) -> list[Record]:
        """The records of a unit, which is sampled and scored as one batch whatever else is done; of none without."""
        records: list[Record] = []
        for unit, indices in [(unit, header.rows(unit)) for unit in units]:
            own = job.select(slice(indices.start * header.n, indices.stop * header.n))
            evaluated = self.sampled(own)
            for row, prompt in enumerate(own.prompts):
                index, sample = int(own.group[row]), int(own.sample[row])
                record: Record = {
                    "index": index, "sample": sample, "unit": unit, "key": prompt.uid, "task": prompt.source,
                    "prompt": prompt.text, "answer": prompt.answer, "values": _with_reward(evaluated.scores, row),
                    "note": evaluated.scores.notes[row],
                }  # fmt: skip
                with writing(folder.media):
                    stem = f"{index:04d}-{sample:02d}"
                    records.append(record | self.keep_of_suite(folder.media, stem, evaluated, row))
        return records

    def close(self) -> None:
        """End the processes of a suite's scorers."""
        self.scorer.close()


def run_anew(suites: Sequence[Evaluation], target: Path | None, *, source: str) -> Metrics:
    """Run suites below a folder, or one that is forgotten, whatever lies there; see ``Evaluation.run``."""
    metrics: Metrics = {}
    for evaluation in suites:
        ranks = evaluation.assembly.ranks
        with nullcontext(target) if target is not None else TemporaryDirectory() as folder:
            place = Path(folder) / SUITES / evaluation.suite.name
            ranks.first(partial(shutil.rmtree, place, ignore_errors=True))
            result = ranks.gather(evaluation.run(place, source=source, update=None))[0]
        metrics |= metrics_of(result)
    return metrics


def prompt_images(prompt: Prompt) -> Iterator[tuple[str, Image.Image]]:
    """What a prompt shows, each with a name: its images, some frames of its videos, and its further inputs.

    What it plays is not among them.
    """
    media = [*((str(number), one) for number, one in enumerate((*prompt.images, *prompt.videos))), *prompt.inputs]
    for name, one in media:
        if one.kind == "image":
            yield name, one.image()
            continue
        frames, _ = one.video(FRAMES)
        yield from ((f"{name}-{number}", Image.fromarray(frame)) for number, frame in enumerate(frames))


def _prompts(job: Job) -> Iterator[Mapping[str, Any]]:
    """What each prompt says: of most prompts no samples are kept, and a table of all of them names them."""
    for number, prompt in dict(zip(job.group.tolist(), job.prompts, strict=True)).items():
        text = prompt.turns[-1].text
        answer = None if prompt.answer is None else prompt.answer[:LONGEST]
        yield {"index": number, "prompt": text[:LONGEST], "answer": answer, "source": prompt.source}


def _with_further(scores: Scores, row: int) -> tuple[float | None, dict[str, float | None]]:
    """A sample's reward, and all values that it is made of or that the sample has besides."""
    reward, components = scores_of_row(scores, row)
    return reward, components | scores.further[row]


def _with_reward(scores: Scores, row: int) -> dict[str, float | None]:
    """A sample's values by column of a suite, of which the weighted sum is one."""
    reward, components = scores_of_row(scores, row)
    return {REWARD: reward} | components


def _weights(assembly: Any) -> dict[str, str]:
    """A hash of the trained weights, from the beginning of each tensor: which checkpoint it is, whatever its name."""
    if assembly.ranks.size > 1:  # where they are sharded; the update says which they are
        return {}
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(assembly.roles.parameters().items()):
        head = value.detach().flatten()[:HASHED].float().cpu()
        digest.update(f"{name} {list(value.shape)}".encode() + head.numpy().tobytes())
    return {"trained": digest.hexdigest()}
