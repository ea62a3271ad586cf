"""Every algorithm on one recipe, over seeds, side by side: what was gained, what it cost, what else changed.

A run that is finished is kept, and one that was stopped goes on: give the same command again. With --docs the table
goes into docs/algorithms, between marks.

    python -m benchmarks.algorithms --seeds 0,1,2 --runs runs/algorithms --jobs 2 --docs
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from burnish.config import RunConfig, load
from burnish.config.run_folder import STEP, RunFolder
from burnish.registry import names
from burnish.report.statistics import REWARD, Measure
from burnish.report.summary import Summary
from burnish.utils.errors import UserError

DOCS = Path(__file__).parents[1] / "docs" / "algorithms"
SIGNIFICANT = 0.05
COUNTED = ("perf/total_num_images", "perf/total_num_responses")


@dataclass(frozen=True)
class Member:
    """One run of the comparison."""

    recipe: str
    algorithm: str
    seed: int
    folder: Path
    more: tuple[str, ...]  # further options of the command line

    @property
    def options(self) -> list[str]:
        own = [f"algorithm={self.algorithm}", f"seed={self.seed}", f"output_dir={json.dumps(str(self.folder))}"]
        return [*own, *self.more]

    @property
    def config(self) -> RunConfig:
        return load(self.recipe, self.options)

    def finished(self) -> bool:
        """Whether there is nothing left to train.

        Raises:
            UserError: the folder has a run with other options.
        """
        folder = RunFolder(self.folder)
        if not folder.config.exists():
            return False
        folder.refuse_other_configuration(folder.with_its_batches(self.config))
        run = Summary.read(folder)
        return run.after is not None and run.after[STEP] == self.config.steps

    def train(self) -> bool:
        """Run to the end, with what is said in a file beside the folder; whether that worked."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"{self.folder}: training", flush=True)
        with self.folder.with_suffix(".log").open("w") as log:
            command = [sys.executable, "-m", "burnish", "train", self.recipe, *self.options]
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        print(f"{self.folder}: {f'failed with code {code}, see {log.name}' if code else 'done'}", flush=True)
        return code == 0


def train(members: Sequence[Member], jobs: int) -> bool:
    """Train what is not finished, so many at a time; whether all of it is now."""
    todo = [member for member in members if not member.finished()]
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return all(list(pool.map(Member.train, todo)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class Line:
    """What one algorithm gave, over its seeds."""

    algorithm: str
    runs: Sequence[Summary]

    def pairs(self, measure: Measure) -> list[tuple[float, float]]:
        """Before and after, of every run that has both."""
        found = [(measure.of(run.before), measure.of(run.after)) for run in self.runs]
        return [(before, after) for before, after in found if before is not None and after is not None]

    def change(self, measure: Measure) -> str:
        """Mean before, mean after, and the standard deviation of the latter over seeds."""
        pairs = self.pairs(measure)
        if not pairs:
            return ""
        before, after = zip(*pairs, strict=True)
        spread = f" ± {measure.show(statistics.stdev(after))}" if len(pairs) > 1 else ""
        return f"{measure.show(statistics.mean(before))} → {measure.show(statistics.mean(after))}{spread}"

    def final(self, measure: Measure) -> float:
        """Mean after training."""
        return statistics.mean([after for _, after in self.pairs(measure)] or [-math.inf])

    def samples(self) -> int:
        """Samples that a run learned from, on average."""
        each = [sum(v or 0 for row in run.rows for k, v in row.items() if k in COUNTED) for run in self.runs]
        return round(statistics.mean(each))

    def seconds(self) -> float:
        """Of the updates of the fastest run, without validation."""
        return min(sum(row.get("timing_s/step") or 0 for row in run.rows) for run in self.runs)

    def rise(self) -> str:
        """Whether the reward rose by more than chance: over seeds by a paired t-test, else over prompts."""
        gains = [after - before for before, after in self.pairs(REWARD)]
        if len(gains) > 1:
            p = paired_t(gains)
            shown = f"p = {p:.3f}".replace("0.", ".") if p >= 0.0005 else "p < .001"
            return shown if p < SIGNIFICANT else f"no, {shown}"
        doubt = max((run.doubt.get(REWARD.key, 0.0) for run in self.runs), default=0.0)
        return "beyond two standard errors over prompts" if gains and gains[0] > doubt > 0 else "no"


def paired_t(gains: Sequence[float]) -> float:
    """One-sided p-value of the mean of paired differences being above 0, by Student's t.

    The distribution is Abramowitz and Stegun's finite series for a whole number of degrees of freedom (26.7.3, 26.7.4).
    """
    freedom = len(gains) - 1
    mean, spread = statistics.mean(gains), statistics.stdev(gains)
    if spread == 0:
        return 0.0 if mean > 0 else 1.0
    angle = math.atan(mean / spread * math.sqrt(len(gains) / freedom))
    odd = freedom % 2
    term = total = math.cos(angle) if odd else 1.0
    if freedom == 1:
        total = 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    inside = total * math.sin(angle)
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return (1 - inside) / 2


def collect(members: Sequence[Member]) -> list[Line]:
    """A line for each algorithm with a finished run, the best first."""
    runs: dict[str, list[Summary]] = {}
    for member in members:
        if member.finished():
            runs.setdefault(member.algorithm, []).append(Summary.read(RunFolder(member.folder)))
    lines = [Line(algorithm, found) for algorithm, found in runs.items()]
    return sorted(lines, key=lambda line: line.final(REWARD), reverse=True)


def measures(lines: Sequence[Line]) -> list[Measure]:
    """What any of the runs is judged by, in their order."""
    found = {measure.key: measure for line in lines for run in line.runs for measure in run.measures}
    return [measure for measure in found.values() if any(line.pairs(measure) for line in lines)]


def place(recipe: str, algorithm: str) -> str:
    """The section about an algorithm, from the overview of all."""
    sees = load(recipe).task == "image-text-to-text"
    pages = [page for page in DOCS.glob("*.md") if page.stem.startswith("language") == sees]
    (page,) = [page for page in pages if f"\n## {algorithm}\n" in page.read_text(encoding="utf-8")]
    return f"{page.name}#{algorithm}"


def table(lines: Sequence[Line], recipe: str = "") -> str:
    """Markdown; of a named recipe with links to the sections about the algorithms."""
    columns = measures(lines)
    what = lines[0].runs[0].words.samples
    heading = ["algorithm", *(measure.title.lower() for measure in columns), what, "seconds", "reward rose"]
    rows = [heading, ["---"] * len(heading)]
    for line in lines:
        name = f"[{line.algorithm}]({place(recipe, line.algorithm)})" if recipe else line.algorithm
        cells = [line.change(measure) for measure in columns]
        rows.append([name, *cells, f"{line.samples():,}".replace(",", " "), f"{line.seconds():.0f}", line.rise()])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_docs(lines: Sequence[Line], recipe: str, seeds: Sequence[int], docs: Path) -> None:
    """Put the table into the overview."""
    over = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    fewer = min(len(line.runs) for line in lines) < len(seeds)
    spread = " ± standard deviation over seeds" if len(seeds) > 1 else ""
    say = (
        f"`burnish train {recipe} algorithm=NAME`, {over}: mean before → after training{spread}. Seconds are those of\n"
        "the fastest run, without validation, beside another run on the second core. Whether the reward rose is a\n"
        "one-sided paired t-test over seeds."
    ) + (f"\nA line without ± is of seed {seeds[0]} alone." if fewer else "")
    between(docs / "README.md", f"table {recipe}", f"{say}\n\n{table(lines, recipe)}")


def between(page: Path, mark: str, text: str) -> None:
    """Replace what stands between two marks of a page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, tail = rest.partition(end)
    if not (begun and ended):
        raise UserError(f"{page} has no {begin} and {end}")
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("more", metavar="OPTION=VALUE", nargs="*", help="further options of all runs")
    parser.add_argument("--recipe", default="quickstart", help="recipe that all train (%(default)s)")
    parser.add_argument("--algorithms", help="names, separated by commas (all of the recipe's task)")
    parser.add_argument("--seeds", default="0,1,2", help="(%(default)s)")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--finished", action="store_true", help="train nothing: a table of what is there")
    parser.add_argument("--docs", type=Path, nargs="?", const=DOCS, help="write the table into these pages (%(const)s)")
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    return parser.parse_intermixed_args()


def figures(lines: Sequence[Line]) -> dict:
    """What the table is made of."""
    rows = [
        {
            "name": line.algorithm,
            "samples": line.samples(),
            "seconds": line.seconds(),
            "rose": line.rise(),
            **{m.title: line.pairs(m) for m in measures(lines)},
        }
        for line in lines
    ]
    return {"rows": rows}


def main() -> int:
    args = arguments()
    known = names(load(args.recipe).algorithm_kind)
    chosen = args.algorithms.split(",") if args.algorithms else known
    seeds = [int(seed) for seed in args.seeds.split(",")]
    members = [
        Member(args.recipe, algorithm, seed, args.runs / args.recipe / algorithm / str(seed), tuple(args.more))
        for seed in seeds
        for algorithm in chosen
    ]
    complete = args.finished or train(members, args.jobs)
    lines = collect(members)
    if not lines:
        return 1
    print(f"\n{table(lines)}")
    if args.output:
        args.output.write_text(json.dumps(figures(lines), indent=1) + "\n")
    if args.docs:
        write_docs(lines, args.recipe, seeds, args.docs)
    return 0 if complete else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"{error}")
