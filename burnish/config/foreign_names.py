"""Names of other trainers' options, and former ones of ours: the table that messages, documents and recipes go by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from typing import Any

from burnish.config.yaml_text import parse
from burnish.utils.paths import ASSETS

OLD = "Burnish"  # whose former names are in the table, too
PROJECTS = {
    "language": (OLD, "verl", "EasyR1", "TRL", "LightRFT", "OpenRLHF", "UniRL"),
    "flow": (OLD, "flow_grpo", "Flow-Factory", "verl-omni", "UniRL"),
}
_AND = re.compile(r" and (?=[\w.]+(?: = |=|$))")  # between options, not in a formula
_TARGET = re.compile(r"([^=]+?)(?: = (.+)|=(.+))?")  # option, option = FORMULA, option=VALUE
_CHOICE = re.compile(r"'([\w. -]+)': '([\w. -]+)'")


@dataclass(frozen=True)
class Trainer:
    """What the table says of a project."""

    names: dict[str, str]  # its options: ours, see ``read_entry``
    also: dict[str, str] = field(default_factory=dict)  # other names of these: of other versions, of classes
    same: list[str] = field(default_factory=list)  # names that are ours, too, and mean the same
    defaults: dict[str, Any] = field(default_factory=dict)  # of options that a file leaves out
    recipe: dict[str, Any] = field(default_factory=dict)  # what only we ask for
    rewards: dict[str, Any] = field(default_factory=dict)  # its rewards: ours
    needless: dict[str, list[str]] = field(default_factory=dict)  # reasons: names that nothing is lost with
    lost: dict[str, list[str]] = field(default_factory=dict)  # what to do instead: names without a counterpart
    like: Trainer | None = None  # whose names it has, too

    def find(self, name: str) -> str:
        """A name as the table has it: that of other versions, and an argument of a class without the class."""
        name = self.also.get(name, name)
        inner = name.partition(".")[2]
        if self.look(name)[0] == "unknown" and inner and name[0].isupper():
            return self.find(inner)
        return name if self.like is None or name in self.names else self.like.find(name)

    def look(self, name: str) -> tuple[str, str]:
        """What the table says of a name: in ``names`` its entry, in ``needless`` or ``lost`` the reason; or unknown."""
        if name in self.names or name in self.same:
            return "names", self.names.get(name, name)
        groups = [("needless", self.needless), ("lost", self.lost)]
        reasons = ((kind, why) for kind, group in groups for why, names in group.items() if fnmatched(name, names))
        return next(reasons, ("unknown", "") if self.like is None else self.like.look(name))


@cache
def trainers() -> dict[str, Trainer]:
    """The table, by project."""
    found: dict[str, Trainer] = {}
    for project, own in parse((ASSETS / "foreign_names.yaml").read_text(encoding="utf-8")).items():
        above = found.get(own.get("like", ""))
        shared = {} if above is None else {"recipe": above.recipe, "rewards": above.rewards}
        found[project] = Trainer(**shared | own | {"like": above})
    return found


def projects() -> list[str]:
    """Those of others in the table."""
    return [project for project in trainers() if project != OLD]


def fnmatched(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is among some, of which * stands for anything."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def read_entry(entry: str) -> tuple[list[tuple[str, str | None, str | None]], str]:
    """What an entry of the table names: each of our options with its formula or its value in YAML; and a remark."""
    ours, _, remark = entry.partition("; ")
    matches = [_TARGET.fullmatch(text) for text in _AND.split(ours)]
    return [(one[1], one[2], one[3]) for one in matches if one is not None], remark


def shown(entry: str) -> tuple[list[str], str]:
    """The options of an entry as people write them, and what there is to say of them."""
    targets, remark = read_entry(entry)
    pairs = [pair for _, formula, _ in targets for pair in _CHOICE.findall(formula or "") if pair[0] != pair[1]]
    said = remark or ", ".join(dict.fromkeys(f"`{theirs}` is `{ours}`" for theirs, ours in pairs))
    return [option if value is None else f"{option}={value}" for option, _, value in targets], said


def foreign_name(option: str, half: str, *, short: bool) -> str | None:
    """What an option of another trainer, or a former one of ours, is called now; None if none of them has it.

    Args:
        option: dotted, and perhaps an option of what is a section here or a dictionary there.
        half: of the run; names in trainers of that half come first.
        short: whether the end of a name will do: ``ppo_epochs`` for ``actor_rollout_ref.actor.ppo_epochs``, or
            a name in a section that it is not in, as in ``trainer.num_train_epochs``.
    """
    table = {project: one.names for project, one in trainers().items()}
    projects = sorted(table.items(), key=lambda item: item[0] not in PROJECTS[half])
    parts = option.split(".")
    exact = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    found = [(project, name) for above in exact for project, own in projects for name in own if name == above]
    found += [
        (project, name)
        for project, own in projects
        for name in own
        if short and (name.endswith(f".{option}") or name == parts[-1])
    ]
    for project, name in found:
        ours, remark = shown(table[project][name])
        if name in ours:  # a name of ours, too
            continue
        whose = "a former name" if project == OLD else f"{project}'s name"
        note = f" ({remark})".replace("`", "") if remark else ""
        return f"{whose}{'' if name == option else f' {name}'}; here it is {' and '.join(ours)}{note}"
    return None
