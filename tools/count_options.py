"""How many options there are: of a run, whatever it learns by, and of all kinds.

python -m tools.count_options
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from burnish.config.load import context_of
from burnish.config.names import options_of
from burnish.registry import KINDS, names

# sections whose options a name chooses
CHOSEN = ("algorithm.", "rewards.", "environment.", "optimizer.name.", "optimizer.schedule.")


def leaves(options: Iterable[str]) -> set[str]:
    """Options that are no sections; pools, trackers, optimizers and sections that keep samples count once."""
    every = set(options)
    ends = {one for one in every if not any(other.startswith(f"{one}.") for other in every)}
    ends = {re.sub(r"^pools\.\w+\.", "pools.POOL.", one) for one in ends}
    ends = {re.sub(r"^trackers\.\w+\.", "trackers.TRACKER.", one) for one in ends}
    ends = {re.sub(r"^(\w+\.|\w+_)?optimizer\.", "optimizer.", one) for one in ends}
    return {re.sub(r"^(rollout|validation)\.save\.", "SECTION.save.", one) for one in ends}


def count() -> dict[str, int]:
    """Distinct options of a run of each half, of both, and with those of everything that has a name."""
    found = {
        recipe: {one for one in leaves(context_of(recipe).every_option()) if not one.startswith(CHOSEN)}
        for recipe in ("quickstart", "vlm_quickstart")
    }
    shared = set().union(*found.values())
    named = {f"{kind}.{one}" for kind, entry in KINDS.items() if entry.options for name in names(kind)
             for one in leaves(options_of(kind, name))}  # fmt: skip
    return {recipe: len(own) for recipe, own in found.items()} | {
        "of a run": len(shared), "of all kinds": len(shared) + len(named),
    }  # fmt: skip


if __name__ == "__main__":
    for what, number in count().items():
        print(f"{number:4} {what}")
