"""A run of a language model that was written, not trained: how often it was right, and in what form."""

import json
import random

from burnish.config import dump, load
from burnish.config.run_folder import RunFolder

PROMPTS, N = 150, 4


def run_of(path, right: tuple[float, float], form: tuple[float, float], think: tuple[float, float]) -> RunFolder:
    """A run that has the form, is right where it has it, and thinks aloud so often, before and after."""
    folder, draw = RunFolder(path), random.Random(0)
    folder.path.mkdir()
    folder.config.write_text(dump(load("vlm_quickstart", [f"output_dir={path}"])))
    rows = []
    for update, side in ((0, 0), (60, 1)):
        scores, samples = [], []
        for index in range(PROMPTS):
            hard = draw.gauss(0, 0.2)
            for sample in range(N):
                formed = float(draw.random() < form[side])
                exact = float(formed and draw.random() < right[side] + hard)
                about = {"index": index, "sample": sample}
                values = {"exact": exact, "format": formed, "tokens": 9.0}
                scores.append(about | {"source": "default", "reward": exact, "values": values})
                response = "<think>a b c</think> It is 3." if draw.random() < think[side] else f"Answer {sample}."
                said = {"prompt": "?", "reward": exact, "components": {}, "note": "", "response": response}
                samples += [about | said] if index < 16 else []
        folder.validation(update).mkdir(parents=True)
        for name, lines in (("scores", scores), ("samples", samples)):
            file = folder.validation(update) / f"{name}.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        exact, formed = (sum(one["values"][name] for one in scores) / len(scores) for name in ("exact", "format"))
        row = {"val-core/default/reward/mean@4": exact, "val-aux/default/exact/mean@4": exact}
        row |= {"val-aux/default/format/mean@4": formed, "val-aux/default/exact_given_format/mean@4": exact / formed}
        row |= {f"val-aux/default/exact/maj@{n}/{k}": v for n, v in ((2, 0.5), (4, 0.75)) for k in ("mean", "std")}
        rows.append({"training/global_step": update} | row)
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
