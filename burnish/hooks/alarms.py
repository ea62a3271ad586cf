"""Raises alarms: says what has moved in the log at once, keeps images or responses of then and now, and decides what
is done about it."""

from __future__ import annotations

import io
import logging
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias, get_args

import numpy as np
from PIL import Image
from pydantic import TypeAdapter

from burnish.alarms.actions import RECENT, Action, decide, write_actions
from burnish.alarms.detectors import FIRST, LIMITS, Drift, RewardDominance, Threshold
from burnish.alarms.record import Alarm, Raised, Row, amount, read_alarms
from burnish.config import RunConfig
from burnish.config.run_folder import STEP, RunFolder
from burnish.hooks import Hook, StopRequest
from burnish.hooks.log import Lines
from burnish.options import AlarmAction, AlarmOptions
from burnish.report.samples import Scores, read_scores
from burnish.report.statistics import pass_at_k
from burnish.types.rollout import Collected, Rollouts, ScoredResponses
from burnish.types.samples import WATCHED, Quote
from burnish.utils.disk import write_atomically, writing
from burnish.utils.images import grid
from burnish.utils.reading import read_file
from burnish.utils.terminal import cut

log = logging.getLogger(__name__)

FAMILIAR = 0.02  # share of the first responses that a form has to have had
LOGGED = 80  # characters of a response in the log
USUAL: dict[str, AlarmAction] = dict.fromkeys(("forecast", "fp8"), "exact_sampling")  # where alarms.on names no other

Detector: TypeAlias = "Drift | RewardDominance | Threshold | ModeCollapse"  # looks at one thing in every update


def detectors(config: RunConfig, options: AlarmOptions, folder: RunFolder) -> list[Detector]:
    """What looks at each thing that a run of this configuration has."""
    drift = partial(Drift, prompts=config.records, samples=config.sampled_per_prompt)
    watched = {name: reward for name, reward in config.rewards.items() if not reward.counts}
    detecting: list[Detector] = [
        drift(f"critic/{name}", worse="lower" if one.higher_is_better else None, alike=one.compares() == "groups")
        for name, one in watched.items()
    ]
    # responses become surer in any training; where nothing is left of that, entropy_collapse says it
    detecting += [drift(f"response/{name}", worse=None if name == "length" else "higher") for name in WATCHED]
    weights = {
        name: next(filter(None, [one.weight, *one.weight_by.values()]))
        for name, one in config.rewards.items()
        if one.counts
    }
    if len(weights) > 1:
        detecting.append(RewardDominance(weights, prompts=config.records))
    detecting += [Threshold(name, options) for name in LIMITS]
    varied = [name for name, one in watched.items() if one.name == "image_variety"]
    detecting += [Threshold("variety_collapse", options, of=name) for name in varied]
    detecting.append(ModeCollapse(folder))
    return [one for one in detecting if one.name not in options.off]


class Alarms(Hook):
    """Observes every batch, and every update.

    Attributes:
        decided: what alarms do now, for which the run has to be left and entered again.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, options: AlarmOptions, first: FirstUpdates,
        actions: Sequence[Action], stop: StopRequest,
    ) -> None:  # fmt: skip
        """Watch a run.

        Args:
            config: of the run, before any action.
            folder: of the run.
            options: of the run's alarms.
            first: what the first updates were like.
            actions: what alarms did before.
            stop: is asked to end the run.
        """
        self.config, self.folder, self.options, self.actions, self.stop = config, folder, options, actions, stop
        self.decided: list[Action] = []
        self._rows: deque[Row] = deque(maxlen=RECENT)
        self.detectors = detectors(config, options, folder)
        self.lines = Lines(folder.alarms)
        self._active: set[str] = set()
        self._first = first
        self._images: list[bytes] = []  # PNG files of the batch under way
        self._quotes: list[Quote] = []  # and responses

    def start(self, done: int) -> None:
        """Go on from the metrics and the alarms of earlier attempts."""
        rows = [row for row in self.folder.read_metrics() if 0 < row[STEP] <= done]
        for row in rows:
            for one in self.detectors:
                one.add(row[STEP], row)
        self._rows.extend(rows)
        self.lines.begin(done)
        active = {one.name: one for one in read_alarms(self.folder.alarms) if one.over is None}
        for one in self.detectors:
            one.alarm = active.get(one.name)
        self._active = set(active)
        if self.actions or self.folder.alarms_actions.exists():
            write_actions(self.folder.alarms_actions, self.actions)
        acted = {one.alarm: one.update for one in self.actions if one.kind != "rewind"}
        self._act(done, (one for one in active.values() if acted.get(one.name, -1) < one.update))

    def observe(self, update: int, collected: Collected) -> None:
        """Keep what some samples look like."""
        if isinstance(collected, Rollouts):
            self._images, self._quotes = collected.glimpses, collected.quotes
        else:
            self._images, self._quotes = [], []
        if self._images and not self.folder.alarm_sheet("first").exists():
            self._write("first")

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if update > 0:
            self._rows.append(metrics)
            raised = list[Alarm]()
            for one in self.detectors:
                one.add(update, metrics)
                if one.alarm is not None and one.name not in self._active:
                    self._raise(update, one.alarm)
                    raised.append(one.alarm)
                elif one.alarm is None and one.name in self._active:
                    self._active.remove(one.name)
                    self.lines.write({"update": update, "over": one.name})
                    log.info("update %d: alarm %s is over", update, one.name)
            self._act(update, raised)
        metrics["alarms/standing"] = float(len(self._active))

    def _act(self, update: int, raised: Iterable[Alarm]) -> None:
        """Decide what is done about alarms; a stop or a rewind leaves the others to when the run goes on."""
        on, order = USUAL | self.options.on, get_args(AlarmAction)
        for alarm in sorted((one for one in raised if one.name in on), key=lambda one: order.index(on[one.name])):
            if any(one.kind in ("stop", "rewind") for one in self.decided):
                return
            before = [*self.actions, *self.decided]
            action = decide(on[alarm.name], alarm, update, self.config, before, self._rows, self.folder.checkpoints)
            self.decided.append(action)
            log.warning("update %d: alarm %s acts (%s): %s", update, alarm.name, action.kind, action.text)
            if action.kind == "stop":
                self.stop.request(f"alarm {alarm.name}")

    def _raise(self, update: int, alarm: Alarm) -> None:
        self._active.add(alarm.name)
        sheets: tuple[str, ...] = ()
        seen = ""
        if self._images:
            files = self.folder.alarm_sheet("first"), self._write(f"{update:06d}-{alarm.name}")
            sheets, seen = tuple(file.name for file in files), f"; compare {files[0]} with {files[1]}"
        quotes = (tuple(self._first.quotes), tuple(self._quotes)) if self._quotes else ()
        if quotes:
            seen = "; best rewarded at first: " + ", now: ".join(_best(side) for side in quotes if side)
        self.lines.write(Raised(**vars(alarm), update=update, sheets=sheets, quotes=quotes).record())
        log.warning("update %d: alarm %s: %s%s", update, alarm.name, alarm.text, seen)

    def _write(self, name: str) -> Path:
        """A file with the images of the batch."""
        images = [np.asarray(Image.open(io.BytesIO(content))) for content in self._images]
        file = self.folder.alarm_sheet(name)
        with writing(file):
            file.parent.mkdir(exist_ok=True)
            grid(images, columns=4).save(file)
        return file


def _best(quotes: tuple[Quote, ...]) -> str:
    """The response of some that has the highest reward, for the log."""
    one = max(quotes, key=lambda quote: -math.inf if quote.reward is None else quote.reward)
    reward = "missing" if one.reward is None else f"{one.reward:.3g}"
    return f'"{cut(" ".join(one.response.split()), LOGGED)}" (reward {reward})'


@dataclass
class First:
    """What an update was like."""

    forms: dict[str, int]  # how many responses had each form
    quotes: list[Quote]


_FIRST = TypeAdapter(dict[int, First])  # by update


class FirstUpdates(Hook):
    """Forms and some responses of the first updates, and how familiar later forms are.

    They are kept in a file for a run that is resumed, here or elsewhere. It stands before checkpoints, which keep what
    it says of an update.
    """

    def __init__(self, folder: RunFolder, begun: RunFolder | None = None) -> None:
        """Args: ``begun`` is the folder that the run goes on from."""
        self.folder, self.begun = folder, begun
        self._updates: dict[int, First] = {}
        self._unfamiliar: float | None = None

    @property
    def quotes(self) -> list[Quote]:
        """Responses of the first update."""
        return self._updates[min(self._updates)].quotes if self._updates else []

    def start(self, done: int) -> None:
        """Read what an earlier attempt kept of the updates that count."""
        files = [one.alarms_first for one in (self.folder, self.begun) if one is not None and done > 0]
        file = next((one for one in files if one.is_file()), None)
        if file is None:
            return
        try:
            kept = _FIRST.validate_json(read_file(file))
            self._updates = {update: first for update, first in kept.items() if update <= done}
        except ValueError:
            log.warning("%s is damaged; forms of responses are compared with those of the next updates", file)
        if file != self.folder.alarms_first and self._updates:
            self._keep()

    def observe(self, update: int, collected: Collected) -> None:
        """Share of responses whose form hardly any of the first ones had; the first updates are kept."""
        self._unfamiliar = None
        if not isinstance(collected, ScoredResponses):
            return
        forms = [one.outline for one in collected.stats]
        if len(self._updates) < FIRST and update not in self._updates:
            self._updates[update] = First(dict(Counter(forms)), collected.quotes)
            self._keep()
        elif forms:
            known = sum((Counter(first.forms) for first in self._updates.values()), Counter())
            self._unfamiliar = sum(known[form] < FAMILIAR * known.total() for form in forms) / len(forms)

    def __call__(self, update: int, metrics: dict[str, float]) -> None:
        if self._unfamiliar is not None:
            metrics["response/unfamiliar_form"] = self._unfamiliar

    def _keep(self) -> None:
        with writing(self.folder.alarms_first):
            self.folder.alarms_first.parent.mkdir(exist_ok=True)
        write_atomically(self.folder.alarms_first, _FIRST.dump_json(self._updates))


REWARD = "reward"


class ModeCollapse:
    """Compares every validation with the one before training."""

    name = "mode_collapse"

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.alarm: Alarm | None = None
        self._first: Scores | None = None

    def add(self, update: int, row: Row) -> None:
        if not any(name.startswith("val-core/") for name in row):
            return
        if self._first is None:
            self._first = read_scores(self.folder.validation(0))
        compared = pass_at_k(self._first, read_scores(self.folder.validation(update)), REWARD)
        if compared is None or compared.kind != "collapse":
            self.alarm = None
        elif self.alarm is None:
            (was, now, doubt), (before, after, _) = compared.best, compared.mean
            text = (
                f"the best of {compared.n} samples of a validation prompt fell from {amount(was)} to {amount(now)} "
                f"({now - was:+.3f} ± {doubt:.3f}) while the mean rose from {amount(before)} to {amount(after)}: it "
                "does fewer things, more often"
            )
            self.alarm = Alarm(self.name, "validation", update, text)
