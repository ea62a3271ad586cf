"""Forecasts beside counted runs of models of 50 to 200 M weights: both halves, adapters and all weights, both
precisions, on 1, 2 and 4 ranks (gloo).

    python -m benchmarks.forecast_matrix --weights 100
    python -m benchmarks.forecast_matrix --only "language, LoRA" --output found.json
    python -m benchmarks.forecast_matrix --missing --output found.json

A row has the phases whose forecasts are furthest off, below and above what one rank of a run on real tensors held. All
of them take an hour or more on two cores: rows are written as they are found, beside those that the file has, and the
table at the end is of all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from shutil import copytree, ignore_patterns

from benchmarks.forecasts import peaks
from burnish.plan.fakes import pretend_ranks
from burnish.plan.measure import LOAD
from burnish.utils.paths import resolve

FLOW = [
    "algorithm=flow_grpo", "rollout.n=2", "rollout.batch_size=4",
    "rollout.num_inference_steps=5", "trainer.mini_batch_size=null", "trainer.micro_batch_size=2", "validation.n=1",
    "validation.max_prompts=4", "validation.reference_guidance=null", "scoring.processes=0",
]  # fmt: skip
LANGUAGE = [
    "data.max_prompt_length=160", "rollout.max_new_tokens=48", "rollout.n=2", "rollout.batch_size=4",
    "trainer.micro_batch_tokens=416", "validation.every=null",
]  # fmt: skip


def generator(folder: Path, millions: int) -> None:
    """Describe the quickstart's pipeline with a transformer of about so many weights."""
    copytree(resolve("burnish:quickstart/model"), folder, ignore=ignore_patterns("*.safetensors"))
    file, width = folder / "transformer" / "config.json", 512
    given = json.loads(file.read_text())
    given |= {"attention_head_dim": 64, "num_attention_heads": width // 64, "caption_projection_dim": width}
    file.write_text(json.dumps(given | {"num_layers": max(2, round(millions / 9.5))}))


def language_model(folder: Path, millions: int) -> None:
    """Describe a Qwen2.5-VL of about so many weights."""
    from burnish.plan.published import published_model

    known = published_model("Qwen/Qwen2.5-VL-3B-Instruct", "config.json")
    assert known is not None
    hidden = 768
    text = known.about["config"]["text_config"] | {
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_attention_heads": hidden // 64, "vocab_size": 8192,
        "num_key_value_heads": 3, "num_hidden_layers": max(2, round((millions - 7) / 6.9)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    }  # fmt: skip
    vision = known.about["config"]["vision_config"] | {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": hidden,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = {**known.about["config"], "text_config": text, "vision_config": vision}
    type(known)(known.name, known.index, {**known.about, "config": config}).write(folder)


def cases(folder: Path) -> Iterator[tuple[str, str, list[str], int]]:
    """Name, recipe, options and ranks of every run."""
    for half, lora, dtype, size in product(("flow", "language"), (True, False), ("float32", "bfloat16"), (1, 2, 4)):
        name = f"{half}, {'LoRA' if lora else 'all weights'}, {dtype}, {size} rank{'s' * (size > 1)}"
        given = [f"model.path={folder / half}", f"model.dtype={dtype}"]
        given += ["runtime=ray", f"pools.train.processes={size}"] if size > 1 else []
        if half == "flow":
            prompts = f"data.train_batch_size={max(2, size)}"
            yield (
                name,
                "quickstart",
                [*FLOW, prompts, *given, "model.lora.rank=16" if lora else "model.lora=null"],
                size,
            )
        else:
            rows = [f"data.train_batch_size={2 * size}", f"trainer.mini_batch_size={4 * size}"]
            yield name, "qwen25_vl/grpo", [*LANGUAGE, *rows, *given, *(["model.lora.rank=16"] if lora else [])], size


def compare(recipe: str, options: list[str], size: int) -> dict[str, tuple[int, int]]:
    """Bytes of every phase: forecast, and counted.

    Ranks have equal shares here; of the real ones that is taken which held most.
    """
    from benchmarks.checkpoints import processes

    with pretend_ranks(size) as ranks:
        fake = peaks(recipe, options, fake=True, ranks=ranks)
    if size == 1:
        real = [peaks(recipe, options, fake=False, drawn=True)]
    else:
        real = processes(size, lambda ranks: peaks(recipe, options, fake=False, drawn=True, ranks=ranks))
    assert all(fake.keys() == one.keys() for one in real)
    return {name: (peak.total, max(one[name].total for one in real)) for name, peak in fake.items()}


def line(name: str, phases: dict[str, Sequence[int]]) -> str:
    """A row of the table: the phases whose forecasts are furthest off."""
    errors = {phase: fake / real - 1 for phase, (fake, real) in phases.items() if phase != LOAD}
    low, high = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    most = max(real for _, real in phases.values()) / 2**20
    return f"| {name} | {errors[low]:+.1%} ({low}) | {errors[high]:+.1%} ({high}) | {most:,.0f} |"


def found_before(file: Path | None, millions: int) -> dict[str, dict[str, Sequence[int]]]:
    """Phases of the rows in a file of figures, by their names."""
    if file is None or not file.is_file():
        return {}
    given = json.loads(file.read_text())
    if given["millions"] != millions:
        raise SystemExit(f"{file} has figures of models of {given['millions']} M weights; give another file")
    return {row["name"]: row["phases"] for row in given["rows"]}


def main() -> None:
    from benchmarks.setting import options, write

    arguments = options(
        __doc__.splitlines()[0],
        weights={"type": int, "default": 100, "help": "millions of weights"},
        only={"default": "", "help": "part of a row's name"},
        missing={"action": "store_true", "help": "only rows that the output file does not have yet"},
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        millions = 3 if arguments.smoke else arguments.weights
        found = found_before(arguments.output, millions)
        generator(folder / "flow", millions)
        language_model(folder / "language", millions)
        every = list(cases(folder))
        for name, recipe, given, size in every:
            unwanted = arguments.only not in name or (arguments.smoke and size == 4)
            if unwanted or (arguments.missing and name in found):
                continue
            found[name] = compare(recipe, given, size)
            print(line(name, found[name]), flush=True)
            rows = [{"name": one, "phases": found[one]} for one, *_ in every if one in found]
            write(arguments.output, {"millions": millions, "rows": rows})
    print("\n| run | furthest below | furthest above | highest peak, MiB |\n| --- | --- | --- | --- |")
    for name, *_ in every:
        if name in found:
            print(line(name, found[name]))


if __name__ == "__main__":
    main()
