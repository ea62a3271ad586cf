"""Options of other trainers by their names there, and what they are called here."""

from __future__ import annotations

from functools import cache

from burnish.config.yaml_text import parse
from burnish.utils.paths import ASSETS

PROJECTS = {
    "language": ("verl", "EasyR1", "TRL", "LightRFT", "UniRL"),
    "flow": ("flow_grpo", "Flow-Factory", "verl-omni", "UniRL"),
}


@cache
def table() -> dict[str, dict[str, str]]:
    """Their names and ours, by project."""
    found: dict[str, dict[str, str]] = parse((ASSETS / "foreign_names.yaml").read_text(encoding="utf-8"))
    return found


def ours_and_remark(entry: str) -> tuple[list[str], str]:
    """The options that an entry of the table names, and what it says of them."""
    ours, _, remark = entry.partition("; ")
    return ours.split(" and "), remark


def foreign_name(option: str, half: str, *, short: bool) -> str | None:
    """What an option of another trainer is called here, for a message; None if none of them has it.

    Args:
        option: dotted, and perhaps an option of what is a section here or a dictionary there.
        half: of the run; names in trainers of that half come first.
        short: whether the end of a name will do: ``ppo_epochs`` for ``actor_rollout_ref.actor.ppo_epochs``, or
            a name in a section that it is not in, as in ``trainer.num_train_epochs``.
    """
    names = table()
    projects = sorted(names, key=lambda project: project not in PROJECTS[half])
    parts = option.split(".")
    above = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    exact = [(project, name) for name in above for project in projects if name in names[project]]
    ending = [
        (project, name)
        for project in projects
        for name in names[project]
        if short and (name.endswith(f".{option}") or name == parts[-1])
    ]
    if not (found := [*exact, *ending]):
        return None
    project, name = found[0]
    ours, remark = ours_and_remark(names[project][name])
    whose = "name" if name == option else f"name {name}"
    note = f" ({remark})".replace("`", "") if remark else ""
    return f"{project}'s {whose}; here it is {' and '.join(ours)}{note}"
