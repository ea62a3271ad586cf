"""Rewards as a run asks them: an evaluation of a tiny model keeps what each sample got."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.tiny_run import Said, TinyRun, burnish

LIMIT = 45.0  # seconds after which a test fails rather than waits; nothing here takes more than a few
Record = Mapping[str, Any]


def written(files: Path, records: Sequence[Record]) -> str:
    """The option of a recipe that asks these."""
    path = files / "asked.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"data.train_files={path}"


def chosen(rewards: Mapping[str, Record]) -> list[str]:
    """Options of a recipe that has these rewards alone."""
    without = [f"rewards.{name}=null" for name in ("odd",) if name not in rewards]
    return [*without, *(f"rewards.{name}={json.dumps(options)}" for name, options in rewards.items())]


def function(name: str, **options: Any) -> dict[str, Any]:
    """Options of a reward that is a function of the tests'."""
    module, _, own = name.rpartition(":")
    path = f"{module or 'tests.support.named_rewards'}:{own}"
    return {"name": "function", "path": path} | options


def evaluated(
    files: Path,
    rewards: Mapping[str, Record],
    records: Sequence[Record],
    *options: str,
    status: int = 0,
    **sections: Any,
) -> tuple[list[dict[str, Any]], Said]:
    """What is kept of one response of a tiny model to each record, and what the command said.

    Args: ``sections`` are further ones of the recipe.
    """
    given = ["algorithm=grpo", "validation.temperature=0", *chosen(rewards), written(files, records), *options]
    run = TinyRun(files, "language", "llama", *given)
    run.recipe.write_text(json.dumps(json.loads(run.recipe.read_text()) | sections))
    target = files / "judged"
    shutil.rmtree(target, ignore_errors=True)
    said = burnish("eval", run.recipe, *run.options[:-1], "--output", target, status=status)
    file = target / "samples.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [], said
