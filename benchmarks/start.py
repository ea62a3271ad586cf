"""How long a run takes to read its prompts before any weight is loaded, and how much memory that needs.

    python -m benchmarks.start --prompts 100000
    python -m benchmarks.start --prompts 1000000 --form text

A data set of so many questions, each about an image of its own, is made in a temporary folder: a .jsonl file of paths,
with --form embedded a Parquet file that holds the images, or with --form text a .jsonl file without any. A process of
its own reads and checks it as training does. The images differ in their bytes, not in what they show; making them is
not counted.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDE, SMOKE = 448, 200
QUESTION = "Which of the shapes is larger?"
READ = """
import json, resource, sys, time
from burnish.config import load
from burnish.tasks import assemble

def memory():
    status = open("/proc/self/status").read()
    return {name: int(status.split(name + ":")[1].split()[0]) / 1024 for name in ("RssAnon", "VmHWM")}

def used():
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime

before, start, spent = memory(), time.perf_counter(), used()
assembly = assemble(load("vlm_quickstart", sys.argv[1:]))
prompts = assembly.train_prompts
read = time.perf_counter() - start
assembly.check_data()
checked = time.perf_counter() - start - read
begun = time.perf_counter()
assembly.stream(prompts, ()).state_dict()
names = time.perf_counter() - begun
after = memory()
print(json.dumps({
    "prompts": len(prompts), "read_s": read, "check_s": checked, "fingerprint_s": names, "cpu_s": used() - spent,
    "memory_mib": after["RssAnon"] - before["RssAnon"], "peak_mib": after["VmHWM"] - before["RssAnon"],
}))
"""


def image_files(count: int) -> Iterator[bytes]:
    """JPEG files, each with a comment of its own."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((SIDE, SIDE)).save(buffer, "JPEG", quality=85)
    whole = buffer.getvalue()
    for number in range(count):
        comment = f"{number:08d}".encode()
        yield whole[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + whole[2:]


def make(folder: Path, count: int, form: str) -> Path:
    """The data set."""
    if form == "text":
        path = folder / "data.jsonl"
        with path.open("w") as file:
            for number in range(count):
                file.write(json.dumps({"prompt": f"What is {number} + {number % 97}?", "answer": f"{number}"}) + "\n")
        return path
    if form == "embedded":
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        path, rows = folder / "data.parquet", iter(image_files(count))
        schema = arrow.schema(
            [("prompt", arrow.string()), ("images", arrow.list_(arrow.binary())), ("answer", arrow.string())]
        )
        with parquet.ParquetWriter(path, schema) as writer:
            for start in range(0, count, 1000):
                some: list[dict[str, Any]] = [
                    {"prompt": f"<image>{QUESTION}", "images": [next(rows)], "answer": "1"}
                    for _ in range(min(1000, count - start))
                ]
                writer.write_table(arrow.Table.from_pylist(some, schema))
        return path
    path = folder / "data.jsonl"
    with path.open("w") as file:
        for number, image in enumerate(image_files(count)):
            place = folder / f"{number // 1000}" / f"{number}.jpg"
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(image)
            record = {"prompt": f"<image>{QUESTION}", "images": [str(place.relative_to(folder))], "answer": "1"}
            file.write(json.dumps(record) + "\n")
    return path


def measured(path: Path, folder: Path) -> dict[str, float]:
    """What reading and checking it takes, in a process of its own."""
    options = [
        f"data.train_files={path}", "data.val_files=null", f"output_dir={folder / 'run'}", "steps=1", "algorithm=grpo",
        "optimizer.warmup_steps=0", "trainer.mini_batch_size=null", "data.train_batch_size=2",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", READ, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--form", choices=["files", "embedded", "text"], default="files", help="of the images")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    count = SMOKE if arguments.smoke else arguments.prompts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = measured(make(folder, count, arguments.form), folder)
    for what, value in found.items():
        print(f"{what:14} {value:10.1f}")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
