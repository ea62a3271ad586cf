"""Try hostile inputs and print how many were answered well.

    python -m tests.hostile                      everything, in about half an hour
    python -m tests.hostile --sample             one of every kind, always the same
    python -m tests.hostile --kind runs          one kind
    python -m tests.hostile --name config.json   those whose name has these letters, with what was said

Exit code 1 if any was answered badly; each of those is shown with what was said.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.hostile import command_lines, damage, folders
from tests.hostile.bench import Bench, Case, Outcome

# some make inputs of two kinds
MAKERS: list[Callable[[], Iterable[Case]]] = [
    command_lines.cases, damage.recipe_cases, damage.model_cases,
    folders.cases, damage.run_cases,
]  # fmt: skip
KINDS = ("command lines", "recipes", "models", "folders", "runs")


def every_case() -> list[Case]:
    """Everything, in an order that stays."""
    return [case for make in MAKERS for case in make()]


def sample(seed: int) -> list[Case]:
    """One of every kind, which depends on the seed alone."""
    cases = every_case()
    cases = random.Random(seed).sample(cases, len(cases))
    return [next(case for case in cases if case.kind == kind) for kind in KINDS]


def main() -> int:
    """Try what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", action="store_true", help="one of every kind")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given again")
    parser.add_argument("--name", default="", help="only those whose name has this")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    given = parser.parse_args()
    cases = sample(given.seed) if given.sample else every_case()
    cases = [case for case in cases if case.kind in (given.kind or KINDS) and given.name in case.id]
    outcomes = attempt(cases, show=bool(given.name))
    print(table(outcomes))
    return int(any(outcome.bad for outcome in outcomes))


def attempt(cases: Sequence[Case], *, show: bool) -> list[Outcome]:
    """Try cases; bad answers are shown at once, all of them where ``show``."""
    outcomes = []
    folder = tempfile.mkdtemp(prefix="hostile")  # not one that removes itself: every fork would
    try:
        bench = Bench(Path(folder))
        for number, case in enumerate(cases, 1):
            outcome = bench.attempt(case)
            outcomes.append(outcome)
            if outcome.bad or show:
                print(f"[{number}/{len(cases)}] {case.id}\n  {outcome.bad or 'good'}", flush=True)
                print("".join(f"    | {line}\n" for line in outcome.said.splitlines()[-14:]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """How many of each kind were tried, and how many of them answered well."""
    tried = Counter(outcome.case.kind for outcome in outcomes)
    good = Counter(outcome.case.kind for outcome in outcomes if not outcome.bad)
    return "\n".join(["kind, tried, good", *(f"{kind}: {count}, {good[kind]}" for kind, count in tried.items())])


if __name__ == "__main__":
    sys.exit(main())
