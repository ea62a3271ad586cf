"""What a slow scorer adds to a step: 64 samples of either quickstart, each of which takes 0.2 s to score.

The scorer sleeps, as one that waits for a GPU or a server does. Processes score samples as they are finished; what a
step waits for when all are sampled is what the scorer adds to it. The aim is less than 0.6 s, where one after another
would take 12.8 s. The process that samples needs a core of its own for that to hold.

    python -m benchmarks.scoring --processes 32 --output scoring.json
"""

import time
from contextlib import closing
from statistics import median

from benchmarks.setting import options, table, write
from benchmarks.slow_scorer import SECONDS
from burnish.config import load
from burnish.tasks import assemble
from burnish.types.samples import FAILED

SAMPLES, AIM = 64, 0.6
STARTING, UPDATES = 5, 5  # updates during which processes may still start; and those that count, by their median
RUNS = {
    "quickstart": ["data.train_batch_size=8", "rollout.n=8", "rollout.batch_size=8"],
    "vlm_quickstart": ["data.train_batch_size=8", "rollout.n=8", "trainer.mini_batch_size=null"],
}


def measured(recipe: str, processes: int, *, scorer: bool) -> dict[str, float]:
    """Seconds that an update's samples take once all runs, and of these the wait for scores when all are sampled."""
    more = ["rewards.slow={name: function, path: 'benchmarks/slow_scorer.py:slow', weight: 0}"] if scorer else []
    config = load(recipe, [*RUNS[recipe], f"scoring.processes={processes}", "output_dir=unused", *more])
    assembly = assemble(config)
    assembly.check_data()
    collect: list[float] = []
    waits: list[float] = []
    with closing(assembly.scorer):
        assembly.probe()
        assembly.check()
        for step in range(1, STARTING + UPDATES + 1):
            assembly.watch.drain()
            begun = time.perf_counter()
            scored = assembly.source.rollout(step)
            collect.append(time.perf_counter() - begun)
            waits.append(assembly.watch.drain()["reward"])
            assert len(scored) == SAMPLES, f"{len(scored)} samples"
            failed = any(flags & FAILED for row in scored.execution for _, flags in row.values())
            assert not failed, "the scorer failed"
    return {"collect": median(collect[STARTING:]), "wait": median(waits[STARTING:])}


COLUMNS = {
    "name": "64 samples", "without": "seconds", "with": "with the scorer", "wait": "of it waiting", "added": "added",
}  # fmt: skip


def main() -> None:
    """Measure both recipes with and without the scorer."""
    chosen = options(
        __doc__.splitlines()[0],
        processes={"type": int, "default": 32, "help": "that score"},
    )
    processes, rows = 2 if chosen.smoke else chosen.processes, []
    for recipe in list(RUNS)[: 1 if chosen.smoke else None]:
        without, with_it = (measured(recipe, processes, scorer=one) for one in (False, True))
        rows.append(
            {
                "name": recipe, "without": without["collect"], "with": with_it["collect"], "wait": with_it["wait"],
                "added": max(with_it["collect"] - without["collect"], 0.0),
            }
        )  # fmt: skip
    print(table(rows, COLUMNS))
    print(f"\nwith {processes} processes; the aim is less than {AIM:g} s added")
    write(chosen.output, {"processes": processes, "scorer_seconds": SECONDS, "aim": AIM, "rows": rows})


if __name__ == "__main__":
    main()
