"""What ``burnish plan`` prints, as numbers, and models of any size to plan with."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.tiny_run import TinyRun, burnish

Pools = dict[str, dict[str, dict[str, float]]]


@dataclass
class Plan:
    """GiB of each pool, in each phase, by what they are for; and all that was said."""

    said: str
    pools: Pools

    @property
    def peak(self) -> float:
        """Of the phase of the first pool that holds most, without the weights."""
        return max(row["peak"] - row["weights"] for row in next(iter(self.pools.values())).values())

    def options(self) -> list[str]:
        """Of the last remedy that was tried."""
        return re.findall(r"^ .*fits?: (.*?)  \(", self.said, re.MULTILINE)[-1].split()


def plan(recipe: Path | str, *options: str, status: int = 0) -> Plan:
    """Forecast a run by the command line."""
    said, pools = burnish("plan", recipe, *options, status=status).out, Pools()
    for line in said.splitlines():
        words = line.rsplit(maxsplit=0)[0] if line else ""
        if found := re.search(r"of pool (\w+), GiB$", words):
            phases = pools.setdefault(found[1], {})
        elif pools and re.fullmatch(r" +[a-z ]+", words):
            names = words.split()
        elif pools and (found := re.fullmatch(r"([a-z, ]+?)((?: +\d+\.\d\d)+)", words)):
            phases[found[1]] = {"weights": 0.0} | dict(zip(names, map(float, found[2].split()), strict=True))
    return Plan(said, pools)


def larger(files: Path, name: str, family: str, algorithm: str = "grpo", **config: Any) -> TinyRun:
    """A run of a language model in FILES/NAME that has other sizes than the tiny one, and no weights."""
    folder = files / name
    if not folder.exists():
        burnish("tiny", family, folder)
        written = json.loads((folder / "config.json").read_text())
        text = written.get("text_config", written)
        for key in ("layer_types", "max_window_layers"):
            text.pop(key, None)
        text |= config
        (folder / "config.json").write_text(json.dumps(written))
        for file in folder.glob("*.safetensors"):
            file.unlink()
    few = ["data.train_batch_size=2", "trainer.epochs=1", "trainer.mini_batch_size=null", "validation.before=false"]
    algorithm = f"algorithm={algorithm}"
    return TinyRun(files, "language", name, algorithm, *few, "validation.every=null", name=f"run-{name}")
