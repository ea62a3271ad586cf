"""Where a training step's time goes: network, images, waiting for rewards, optimizer, and the rest.

It trains a recipe for a few updates through Burnish's own loop and times what it calls. The rest is what the
loop costs by itself: noise, the arithmetic of steps and losses, bookkeeping. Nothing is validated or saved.

    python -m benchmarks.step_time --recipe quickstart --updates 10 --output step_time.json
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from time import perf_counter
from typing import Any

import torch

from benchmarks.setting import median, options, table, write
from burnish.config.load import load
from burnish.loop import run
from burnish.tasks import assemble


class Timers:
    """Wall time by name. A function that runs inside another timed one counts for itself only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.inner = [0.0]

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            where = name
            if name == "network":
                where = "backward network" if torch.is_grad_enabled() else "sampling network"
            start = perf_counter()
            self.inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                spent = perf_counter() - start
                self.seconds[where] += spent - self.inner.pop()
                self.inner[-1] += spent

        return timed


NAMES = {
    "sampling network": "forward without gradients",
    "backward network": "forward with gradients",
    "backward": "backward",
    "optimizer": "optimizer",
    "images": "text embeddings, decoding",
    "reward": "waiting for rewards",
    "rest": "everything else",
}


def measure(recipe: str, updates: int, overrides: list[str]) -> list[dict]:
    """Seconds per step of every part, the median over all updates but the first."""
    steps: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        config = load(recipe, [f"output_dir={folder}", f"steps={updates + 1}", *overrides])
        assembly, timers = assemble(config), Timers()
        model, (optimizer,) = assembly.roles.model, assembly.groups[0].optimizers
        model.predict = timers.around("network", model.predict)
        model.condition = timers.around("images", model.condition)
        model.decode = timers.around("images", model.decode)
        optimizer.step = timers.around("optimizer", optimizer.step)
        backward, torch.Tensor.backward = (
            torch.Tensor.backward,
            timers.around("backward", torch.Tensor.backward),
        )

        def note(update: int, metrics: dict[str, float]) -> None:
            total = metrics["timing_s/step"]
            parts = dict(timers.seconds) | {"reward": metrics["timing_s/reward"]}
            steps.append(parts | {"rest": total - sum(parts.values()), "step": total})
            timers.seconds.clear()

        try:
            with closing(assembly.scorer):
                run(range(1, updates + 2), assembly.source, assembly.workers, [note],
                    watch=assembly.watch, stop=lambda: False)  # fmt: skip
        finally:
            torch.Tensor.backward = backward
    steps = steps[1:]  # the first starts processes, encodes prompts and warms up
    total = median([step["step"] for step in steps])
    rows = [{"name": text, "seconds": median([s.get(key, 0.0) for s in steps])} for key, text in NAMES.items()]
    rows.append({"name": "step", "seconds": total})
    for row in rows:
        row["share"] = f"{100 * row['seconds'] / total:.1f} %"
    return rows


def main() -> None:
    arguments = options(
        __doc__.splitlines()[0],
        recipe={"default": "quickstart", "help": "a recipe by name, or the path of one"},
        updates={"type": int, "default": 10, "help": "policy updates to measure"},
        set={"action": "append", "default": [], "metavar": "OPTION=VALUE", "help": "an option of the recipe"},
    )
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the processes that score
    small = ["data.train_batch_size=2", "rollout.n=2", "rollout.num_inference_steps=6"]
    updates, overrides = (1, small + arguments.set) if arguments.smoke else (arguments.updates, arguments.set)
    rows = measure(arguments.recipe, updates, overrides)
    print(table(rows, {"name": f"a step of {arguments.recipe}", "seconds": "seconds", "share": "share"}))
    write(arguments.output, {"recipe": arguments.recipe, "set": overrides, "rows": rows})


if __name__ == "__main__":
    main()
