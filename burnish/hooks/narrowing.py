"""An alarm of validations: the mean rises while the best of a prompt's samples gets worse."""

from __future__ import annotations

from burnish.alarms.base import Alarm, Row, amount
from burnish.config.run_folder import RunFolder
from burnish.report.passes import passes
from burnish.report.samples import Scores, read_scores

REWARD = "reward"


class Narrowing:
    """Compares every validation with the one before training."""

    name = "narrowing"

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.alarm: Alarm | None = None
        self._first: Scores | None = None

    def add(self, update: int, row: Row) -> None:
        if not any(name.startswith("val-core/") for name in row):
            return
        if self._first is None:
            self._first = read_scores(self.folder.validation(0))
        found = passes(self._first, read_scores(self.folder.validation(update)), REWARD)
        if found is None or found.kind != "narrowing":
            self.alarm = None
        elif self.alarm is None:
            (was, now, doubt), (before, after, _) = found.best, found.mean
            text = (
                f"the best of {found.n} samples of a validation prompt fell from {amount(was)} to {amount(now)} "
                f"({now - was:+.3f} ± {doubt:.3f}) while the mean rose from {amount(before)} to {amount(after)}: it "
                "does fewer things, more often"
            )
            self.alarm = Alarm(self.name, "validation", update, text)
