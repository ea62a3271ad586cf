"""Write the tables of docs/coming_from.md: what options of other trainers are called here.

python tools/foreign_names.py
"""

from __future__ import annotations

import re
from pathlib import Path

from burnish.config.foreign import shown, trainers

PAGE = Path(__file__).parents[1] / "docs" / "coming_from.md"


def rows(project: str) -> str:
    """The table of a project, and what of it has no counterpart or needs none."""
    trainer = trainers()[project]
    lines = [f"| {project} | here |", "| --- | --- |"]
    for theirs, entry in trainer.names.items():
        ours, remark = shown(entry)
        options = " and ".join(f"`{option}`" for option in ours)
        lines.append(f"| `{theirs}` | {options}{f' ({remark})' if remark else ''} |")
    for title, groups in (("Without a counterpart", trainer.lost), ("Nothing to set here", trainer.needless)):
        said = [f"{', '.join(f'`{name}`' for name in names)} ({why})" for why, names in groups.items()]
        lines += ["", f"{title}: {'; '.join(said)}."] if said else []
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the tables of now."""
    return re.sub(
        r"<!-- names: (\S+) -->.*?<!-- end of names -->",
        lambda found: f"<!-- names: {found[1]} -->\n{rows(found[1])}\n<!-- end of names -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
