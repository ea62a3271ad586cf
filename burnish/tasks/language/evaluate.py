"""Responses to held-out questions, always with the same random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.evaluation.results import sampled_settings
from burnish.metrics import given_metrics, length_metrics
from burnish.rewards.scoring import awaited
from burnish.rewards.text.base import Response
from burnish.rl.algorithm import Metrics
from burnish.tasks.evaluate import SAID, SHOWN, Evaluated, Evaluation, prompt_pictures
from burnish.tasks.job import Job
from burnish.tasks.language.dialogues import dialogue_metrics
from burnish.tasks.language.engine import ResponseJob
from burnish.tasks.language.samples import response_columns, said_tokens, sampled_for, token_columns
from burnish.tasks.language.sampling import validation_sampling
from burnish.tasks.suites import Outcome, SuiteRunner
from burnish.types.prompt import Prompt
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.video import encode_sound

KEPT_RATE, KEPT_SECONDS = 16000, 60  # of the sounds that are kept: samples per second, and how much


class LanguageEvaluation(Evaluation):
    """Responds; shows what the questions show."""

    def job(self, n: int, guidance: float | None) -> ResponseJob:
        assert guidance is None, "a language model is not guided"
        assembly = self.assembly
        return ResponseJob.groups(
            assembly.val_prompts, n, purpose="validation", update=0,
            sampling=validation_sampling(assembly.config), check_cancelled=assembly.check_cancelled,
        )  # fmt: skip

    def sampled(self, job: ResponseJob) -> Evaluated:
        assembly = self.assembly
        completion, responses, scoring = sampled_for(job, assembly.engine, assembly.scorer, assembly.tell)
        kept = ((job.group < SHOWN) & (job.sample < SAID)).nonzero().flatten().tolist()
        said = said_tokens(completion, kept, assembly.engine, job.sampling.scored_at)
        tokens = [said.get(row, ()) for row in range(len(responses))]
        return Evaluated(responses, scoring.scores(assembly.check_cancelled), completion.lengths, tokens)

    def measured(self, job: Job, found: Evaluated) -> Mapping[str, Sequence[float]]:
        assert found.lengths is not None, "responses have lengths"
        return {"tokens": found.lengths.response.tolist()}

    def keep(self, target: Path, job: Job, n: int, found: Evaluated, shown: int) -> Sequence[dict[str, Any]]:
        assert found.lengths is not None, "responses have lengths"
        records, names = [], []
        for i, (prompt, response) in enumerate(zip(job.prompts[:shown], found.samples, strict=False)):
            if i % n == 0:
                names = _keep_media(target / "pictures", prompt, response, int(job.group[i]))
            text = {"prompt": prompt.turns[-1].text, "response": response.full_text, "finished": response.finished}
            records.append(
                text | {"tokens": int(found.lengths.response[i]), "images": names} | token_columns(found.tokens[i])
            )
        return records

    def keep_file(self, folder: Path, job: Job, found: Evaluated, row: int) -> Mapping[str, Any]:
        assert found.lengths is not None, "responses have lengths"
        return response_columns(found.samples[row], int(found.lengths.response[row])) | token_columns(found.tokens[row])

    def metrics(self, job: Job, found: Evaluated) -> Metrics:
        assert found.lengths is not None, "responses have lengths"
        more = length_metrics(found.lengths) | dialogue_metrics(found.samples)
        return given_metrics(found.scores, job.prompts, "format") | {f"val-aux/{k}": v for k, v in more.items()}


def _keep_media(folder: Path, prompt: Prompt, response: Response, group: int) -> list[str]:
    """Keep what the question shows and plays, and what an environment shows after it; names of the files."""
    shown = [picture for _, picture in prompt_pictures(prompt)]
    shown += response.dialogue.pictures if response.dialogue is not None else ()
    with writing(folder):
        for number, picture in enumerate(shown):
            picture.save(folder / f"{group:03d}-{number}.png")
        for number, sound in enumerate(prompt.audios):
            heard = sound.audio(KEPT_RATE)[: KEPT_SECONDS * KEPT_RATE]
            (folder / f"{group:03d}-{number}.wav").write_bytes(encode_sound(heard[None], KEPT_RATE))
    return sorted(path.name for path in folder.glob(f"{group:03d}-*") if path.suffix in (".png", ".wav"))


class RespondingRunner(SuiteRunner):
    """A suite of a language model."""

    def check(self) -> None:
        super().check()
        if self.assembly.config.environment is not None:
            raise UserError(
                f"suite {self.suite.name} asks single questions, but the run has an environment, which would answer; "
                "evaluate its exported model (burnish export)"
            )

    @property
    def settings(self) -> dict[str, Any]:
        config = self.assembly.config
        own = {"max_new_tokens": config.rollout.max_new_tokens}
        return sampled_settings(self.suite, own) | {
            "batch_size": config.rollout.batch_size, "stop": list(config.rollout.stop), "dtype": config.model.dtype,
            "engine": config.rollout.engine,
        }  # fmt: skip

    def job(self, fields: Mapping[str, Any]) -> Any:
        from burnish.language.sampling import Sampling

        how = self.settings
        names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p")
        sampling = Sampling(stop=tuple(how["stop"]), **{name: how[name] for name in names})
        return ResponseJob(**fields, sampling=sampling)

    def sampled(self, job: Any) -> Outcome:
        completion, responses = self.assembly.engine.sample(job)
        scores = awaited(self.scorer.submit(responses, job.prompts), self.assembly.check_cancelled)
        lengths = completion.lengths.response.tolist()
        said = [
            {"response": one.text, "finished": one.finished, "tokens": tokens}
            for one, tokens in zip(responses, lengths, strict=True)
        ]
        return Outcome(scores, said, [])
