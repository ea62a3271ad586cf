"""What sampling ahead brings where rewards take their time: in turns beside async_rollout.depth=1.

Both train the second quickstart on a Ray cluster of this machine, by one rank and one rollout worker, run by run in
turns. The reward comes from a service that is asked over HTTP and answers after a fixed time. Seconds are those of
`timing_s/step`, without the first two updates, which warm up, and the last one, beside which nothing is sampled.

    python -m benchmarks.pipeline --turns 3 --updates 15 --output pipeline.json
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean
from threading import Thread

from benchmarks.processes import Processes
from benchmarks.setting import median, options, table, write

WARM, LAST = 2, 1  # updates that are not counted, at the beginning and at the end
LOOK = 0.2  # seconds between looks at a run
LIMIT = 600.0  # seconds that a run may take
SIDES = {"in turns": 0, "async_rollout.depth=1": 1}
NEVER = 1_000_000


@contextmanager
def service(seconds: float) -> Iterator[str]:
    """The address of a server on loopback that says, so many seconds later, which answers are right."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            pairs = zip(asked["responses"], asked["references"], strict=True)
            rewards = [float(f"<answer>{right}</answer>" in response) for response, right in pairs]
            answer = json.dumps({"rewards": rewards}).encode()
            time.sleep(seconds)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing: the table is what is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def train(depth: int, steps: int, address: str, overrides: list[str]) -> dict[str, float]:
    """Seconds and CPU seconds of an update, the mean over those that count."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "burnish", "train", "vlm_quickstart", "runtime=ray", "pools.rollout.processes=1",
            f"async_rollout.depth={depth}", f"steps={steps}", f"output_dir={folder}/run", "ray.address=local",
            "rewards.exact=null", f"rewards.remote.url={address}", "rewards.remote.weight=0.9",
            "rewards.remote.batch_size=256",
            "validation.max_prompts=1", "validation.n=1", f"validation.every={NEVER}", f"checkpoint.every={NEVER}",
            "optimizer.warmup_steps=0",
            *overrides,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
        lines, log = Path(folder, "run", "metrics.jsonl"), Path(folder, "log")
        with log.open("w") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        cpu = _watch(process, lines)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}:\n{log.read_text()}")
        updates = [json.loads(line) for line in lines.read_text().splitlines()]
    counted = updates[1 + WARM : -LAST]
    before, after = (cpu[min(count for count in cpu if count >= at)] for at in (1 + WARM, len(updates) - LAST))
    return {
        "seconds": mean(one["timing_s/step"] for one in counted),
        "cpu_seconds": (after - before) / len(counted),
        "gen": mean(one["timing_s/gen"] for one in counted),
        "reward": mean(one["timing_s/reward"] for one in counted),
        "update_actor": mean(one["timing_s/update_actor"] for one in counted),
        "staleness": max(one.get("pipeline/staleness/max", 0.0) for one in counted),
    }


def _watch(process: subprocess.Popen, lines: Path) -> dict[int, float]:
    """CPU seconds of the whole run by the number of lines that it had written; ends it if it takes too long."""
    processes, found = Processes(process.pid), {}
    until = time.monotonic() + LIMIT
    while process.poll() is None:
        seconds = processes.cpu_seconds()
        written = lines.read_text().count("\n") if lines.exists() else 0
        found.setdefault(written, seconds)
        if time.monotonic() > until:
            process.terminate()
            process.wait(LIMIT)
            raise SystemExit(f"a run took longer than {LIMIT:g} seconds")
        time.sleep(LOOK)
    return found


def measure(turns: int, updates: int, answer: float, overrides: list[str]) -> list[dict]:
    """A row for each side: medians over turns, and the gain over the run of the same turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    with service(answer) as address:
        for turn in range(turns):
            for name in sorted(SIDES, reverse=turn % 2 == 1):  # who begins takes turns, too
                found[name].append(train(SIDES[name], WARM + updates + LAST, address, overrides))
                print(f"turn {turn + 1} of {turns}, {name}: {found[name][-1]['seconds']:.3f} s an update", flush=True)
    base = [one["seconds"] for one in found["in turns"]]
    rows = []
    for name, runs in found.items():
        row: dict = {"name": name} | {key: median([run[key] for run in runs]) for key in runs[0]}
        row["gain"] = median([slow / run["seconds"] for slow, run in zip(base, runs, strict=True)])
        rows.append(row)
    return rows


COLUMNS = {
    "name": "an update of vlm_quickstart", "seconds": "seconds", "gain": "x in turns", "cpu_seconds": "CPU-s",
    "gen": "sampling", "reward": "waiting for rewards", "update_actor": "learning", "staleness": "staleness",
}  # fmt: skip


def main() -> None:
    arguments = options(
        __doc__.splitlines()[0],
        turns={"type": int, "default": 3, "help": "runs of each side"},
        updates={"type": int, "default": 15, "help": "policy updates that count in a run"},
        answer={"type": float, "default": 0.3, "help": "seconds that the reward service takes to answer"},
        set={"action": "append", "default": [], "metavar": "OPTION=VALUE", "help": "an option of both sides"},
    )
    turns, updates, overrides = arguments.turns, arguments.updates, arguments.set
    if arguments.smoke:
        turns, updates, overrides = (
            1,
            1,
            ["data.train_batch_size=2", "rollout.n=2", "trainer.mini_batch_size=null", *overrides],
        )
    rows = measure(turns, updates, arguments.answer, overrides)
    print(table(rows, COLUMNS))
    write(
        arguments.output,
        {"answer": arguments.answer, "turns": turns, "updates": updates, "set": overrides, "rows": rows},
    )


if __name__ == "__main__":
    main()
