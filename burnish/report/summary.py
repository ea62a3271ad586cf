"""Summary of a run, from the files in its folder."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from burnish.alarms.actions import Action, read_actions
from burnish.alarms.record import Raised, read_alarms
from burnish.config.run_folder import STEP, TIME, RunFolder
from burnish.config.tasks import DEFAULT, DRAWN, FILES, JUDGEMENTS, TASKS, Words
from burnish.report.runs import read_configuration
from burnish.report.samples import Samples, read_samples, read_scores
from burnish.report.statistics import (
    BORDER,
    EXACT,
    FORMAT,
    GIVEN,
    LENGTH,
    MEASURES,
    REWARD,
    STATISTICS,
    STRICT,
    VARIETY,
    Change,
    Measure,
    PassAtK,
    Pattern,
    Row,
    chance,
    lost_patterns,
    pass_at_k,
    votes,
)  # fmt: skip
from burnish.utils.errors import UserError
from burnish.utils.json_text import parse_json
from burnish.utils.records import is_number
from burnish.utils.terminal import counted, duration

COMPONENT = re.compile(r"val-aux/.+/([^/]+)/mean@[^/]*")  # a metric of a reward's component
TITLES = {  # names that are not just capitals
    "bradley_terry": "Bradley-Terry",
    "branch_grpo": "BranchGRPO",
    "clip_cov": "Clip-Cov",
    "crd": "Centred reward distillation",
    "dance_grpo": "DanceGRPO",
    "diffusion_dpo": "Diffusion-DPO",
    "diffusion_nft": "DiffusionNFT",
    "distill": "On-policy distillation",
    "dr_grpo": "Dr. GRPO",
    "draft": "DRaFT",
    "flow_dppo": "Flow-DPPO",
    "flow_grpo": "Flow-GRPO",
    "flow_grpo_fast": "Flow-GRPO-Fast",
    "grpo_guard": "GRPO-Guard",
    "kl_cov": "KL-Cov",
    "mix_grpo": "MixGRPO",
    "orpo": "ORPO",
    "pass_at_k": "Pass@k training",
    "process_reward": "Process rewards",
    "reinforce_plus_plus": "REINFORCE++",
    "reinforce_plus_plus_baseline": "REINFORCE++ with baseline",
    "remax": "ReMax",
    "score_regression": "Regression on scores",
    "sft": "Supervised fine-tuning",
    "simpo": "SimPO",
    "tempflow_grpo": "TempFlow-GRPO",
}


@dataclass
class Summary:
    """Content of a run folder."""

    config: dict[str, Any]
    rows: list[Row]  # of metrics.jsonl
    reference: Row | None  # the untrained model, guided
    doubt: dict[str, float] = field(default_factory=dict)  # ``Change.chance`` by the key of a measure
    lost_patterns: list[Pattern] = field(default_factory=list)  # of responses
    kept: Samples = field(default_factory=dict)  # of the newest validation
    alarms: list[Raised] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)  # of alarms
    pass_at_k: PassAtK | None = None  # the best of a prompt's samples, before and after

    @classmethod
    def read(cls, folder: RunFolder, *, until: int | None = None) -> Summary:
        """Read the folder of a run, finished or not; ``until`` an update, if later ones don't count."""
        rows = [row for row in folder.read_metrics() if until is None or row[STEP] <= until]
        run = cls(
            config=read_configuration(folder.config), rows=rows, reference=_read_reference(folder),
            alarms=read_alarms(folder.alarms),
        )  # fmt: skip
        with suppress(UserError):  # a run that goes on says it
            run.actions = read_actions(folder.alarms_actions)
        if validations := [update for update in folder.validations() if until is None or update <= until]:
            run.kept = read_samples(folder.validation(validations[-1]))
        if run.before is not None and run.after is not None:
            places = [folder.validation(row[STEP]) for row in (run.before, run.after)]
            first, last = map(read_scores, places)
            run.doubt = {measure.key: chance(first, last, measure.column) for measure in run.measures}
            run.lost_patterns = lost_patterns(*map(read_samples, places))
            exact = run.exact.column if run.exact.of(run.before) is not None else REWARD.column
            run.pass_at_k = pass_at_k(first, last, exact)
        return run

    @property
    def words(self) -> Words:
        """How to speak of what it trained."""
        kept = next(iter(self.kept.values()), None)
        if kept is not None and kept.response is None and kept.image.suffix in FILES:
            return DRAWN[FILES[kept.image.suffix]]
        if self.judges:
            return JUDGEMENTS
        return TASKS.get(self.config.get("task", DEFAULT), TASKS[DEFAULT]).words

    @property
    def judges(self) -> bool:
        """Whether a reward model was trained, which samples nothing."""
        return bool((self.config.get("algorithm") or {}).get("heads"))

    @property
    def exact(self) -> Measure:
        """The strictest measure of the task."""
        return MEASURES[self.words.measures[0]]

    @property
    def updates(self) -> int:
        """Policy updates so far."""
        return max((row[STEP] for row in self.rows), default=0)

    @property
    def planned(self) -> int:
        return int(self.config.get("steps", self.updates))

    @cached_property
    def validated(self) -> list[Row]:
        """The lines of metrics with a validation."""
        return [row for row in self.rows if REWARD.of(row) is not None]

    @property
    def before(self) -> Row | None:
        """The validation of the untrained model."""
        return next((row for row in self.validated if row[STEP] == 0), None)

    @property
    def after(self) -> Row | None:
        """The last validation of a trained model."""
        trained = [row for row in self.validated if row[STEP] > 0]
        return trained[-1] if trained else None

    @cached_property
    def used(self) -> list[tuple[int, float, float]]:
        """By update the samples and the seconds so far, those of validations among them."""
        samples = accumulate(row.get(self.words.total) or 0 for row in self.rows)
        seconds = [row.get(TIME) or 0.0 for row in self.rows]
        return list(zip((row[STEP] for row in self.rows), samples, seconds, strict=True))

    @property
    def seconds(self) -> float:
        """Time of all updates and of the validations between them."""
        return self.used[-1][2] if self.used else 0.0

    @cached_property
    def measures(self) -> list[Measure]:
        """Metrics of the validations: reward, exactness, other components, variety, length."""
        measures = [REWARD]
        known = {name: MEASURES[name] for name in self.words.measures}
        rewards = self.config.get("rewards") or {}
        names = {found[1] for row in self.validated for key in row if (found := COMPONENT.fullmatch(key))}
        for name in sorted(names):
            if name in known:
                measures.append(known[name])
            elif not (len(self._weighted()) == 1 and name in self._weighted()):  # that is the reward itself
                weight = (rewards.get(name) or {}).get("weight", 0)
                title = name.replace("_", " ").capitalize()
                key, about = f"val-aux/*/{name}/mean@*", STATISTICS.get(name, "" if weight else "logged only")
                watched = name in STATISTICS and name not in self._weighted()
                measures.append(Measure(title, key, (weight > 0) - (weight < 0), watched=watched, about=about))
        measures += [*votes(self.validated), VARIETY, LENGTH]
        order = [REWARD, EXACT, STRICT, FORMAT, GIVEN, None, BORDER, VARIETY, LENGTH]
        places = {measure.key: place for place, measure in enumerate(order) if measure is not None}
        measures.sort(key=lambda measure: places.get(measure.key, order.index(None)))
        return [measure for measure in measures if any(measure.of(row) is not None for row in self.validated)]

    def change(self, measure: Measure) -> Change | None:
        """How it changed between the validations before and after; None where either is missing."""
        before, after = measure.of(self.before), measure.of(self.after)
        doubt = self.doubt.get(measure.key, 0.0)
        return None if before is None or after is None else Change(measure, before, after, doubt)

    def sentence(self) -> str:
        """What was trained, in one sentence."""
        config = self.config
        if not config:
            return f"A run of {self.updates} policy updates without config.yaml."
        lora = config["model"].get("lora")
        what = f"LoRA adapters of rank {lora['rank']}" if lora else f"all weights of {self.words.trained}"
        prompts, samples = config["data"]["train_batch_size"], config["rollout"]["n"]
        words = self.words
        drawn = self.used[-1][1] if self.used else 0
        done = f"{self.updates}{f' of {self.planned}' if self.updates < self.planned else ''} policy updates"
        begin = f"{algorithm_title(config['algorithm']['name'])} trained {what} of {config['model']['path']}"
        time, count = duration(self.seconds), f"{drawn:,.0f}".replace(",", " ")
        if self.judges:
            return f"{begin} as a reward model for {done} of {prompts} records: {count} responses in {time}."
        pace = f"{count} {words.samples} in {time}" if drawn else f"no {words.sample} yet"
        taught = config["algorithm"].get("teachers") and not config["algorithm"].get("reward_coef")
        aim = "what teachers say" if taught else " + ".join(self._weighted())
        return f"{begin} on {aim} for {done} of {prompts} prompts × {samples} {words.samples}: {pace}."

    def warnings(self) -> list[str]:
        """Problems during the run."""
        names = ", ".join(raised.name for raised in self.active)
        warnings = [f"Alarms, shown below: {names}."] if names else []
        missing = [row.get("critic/missing_ratio") or 0 for row in self.rows if row[STEP] > 0]
        if any(missing):
            warnings.append(
                f"{100 * sum(missing) / len(missing):.1f} % of the training rewards could not be computed, in "
                f"{sum(map(bool, missing))} of {counted(len(missing), 'updates')}; those {self.words.samples} were not "
                "trained on."
            )
        warnings += [
            f"Validation {row[STEP]} lacks the reward of {100 * share:.1f} % of its {self.words.samples}."
            for row in self.rows
            if (share := row.get("val-aux/missing"))
        ]
        notes = Counter(sample.note for sample in self.kept.values() if sample.reward is None and sample.note)
        if warnings and notes:
            warnings.append(f"Most frequent cause in the last validation: {notes.most_common(1)[0][0]}")
        empty = sum(row.get("actor/empty_updates") or 0 for row in self.rows)
        if empty:
            warnings.append(
                f"{empty:.0f} optimizer steps were skipped for lack of training signal: rewards were missing (see "
                "failures.jsonl), or all equal."
            )
        skipped = sum(row.get("actor/skipped_updates") or 0 for row in self.rows) - empty
        if skipped:
            warnings.append(
                f"{skipped:.0f} optimizer steps were skipped because loss or gradient was not finite; "
                "a lower optimizer.lr may help."
            )
        return warnings

    @property
    def active(self) -> list[Raised]:
        """Alarms that are not over."""
        return [raised for raised in self.alarms if raised.over is None]

    def _weighted(self) -> list[str]:
        rewards = self.config.get("rewards") or {}
        return [
            name
            for name, options in rewards.items()
            if any([(options or {}).get("weight"), *((options or {}).get("weight_by") or {}).values()])
        ]


def _read_reference(folder: RunFolder) -> Row | None:
    file = folder.reference / "metrics.json"
    metrics: Any = None
    with suppress(OSError, ValueError):  # truncated
        metrics = parse_json(file.read_bytes()) if file.is_file() else None
    known = {name: value for name, value in metrics.items() if is_number(value)} if isinstance(metrics, dict) else {}
    return known if "guidance_scale" in known else None


def algorithm_title(name: str) -> str:
    """An algorithm's name as its paper writes it."""
    return TITLES.get(name) or name.upper().replace("_", "-")


def next_steps(folder: RunFolder, run: Summary) -> list[tuple[str, str]]:
    """What to do next, with the commands."""
    path = shlex.quote(str(folder.path))
    if not run.updates:
        return [("train it", _train(folder, run))]  # nothing has been learned that could be sampled or exported
    sampling = [
        (f"sample other {run.words.samples}", f"burnish sample {path} {run.words.sample_arguments}"),
        (f"evaluate with more {run.words.samples}", f"burnish eval {path} validation.n=16"),
    ]
    steps = [
        ("see all runs in a browser", f"burnish board {shlex.quote(str(folder.path.parent))}"),
        *([] if run.judges else sampling),
        ("export the trained model", f"burnish export {path} --output my_model"),
    ]
    train = _train(folder, run)
    if run.updates < run.planned:
        return [("finish the run", train), *steps]
    optimizer, reward = run.config.get("optimizer", {}), run.change(REWARD)
    if optimizer and reward is not None and reward.sign < 0:
        return [
            *steps,
            ("again, at half the rate", f"{train} optimizer.lr={optimizer['lr'] / 2:g} output_dir={path}_slower"),
        ]
    ended = optimizer.get("schedule", "constant") != "constant"  # the learning rate has reached zero
    further = f" optimizer.schedule_updates={2 * run.planned}" * ended
    return [*steps, ("train for longer", f"{train} steps={2 * run.planned}{further}")]


def _train(folder: RunFolder, run: Summary) -> str:
    """The command that resumes a run, also after its folder was moved."""
    words = ["burnish", "train", str(folder.config)]
    if os.path.expanduser(run.config.get("output_dir") or folder.path) != str(
        folder.path
    ):  # of a user who may not be here
        words.append(f"output_dir={folder.path}")
    if run.config.get("resume", "auto") != "auto":
        words.append("resume=auto")
    return shlex.join(words)
