"""A run that passes every check, with files that only look like a model and prompts."""

import json
from pathlib import Path


def files(folder: Path) -> Path:
    """A directory with a pipeline's index, prompts, and a recipe that uses them."""
    quickstart = folder / "assets" / "quickstart"
    (quickstart / "model").mkdir(parents=True)
    index = {"_class_name": "StableDiffusion3Pipeline"}
    (quickstart / "model" / "model_index.json").write_text(json.dumps(index))
    for name in ("train", "heldout"):
        (quickstart / f"{name}.jsonl").write_text('{"prompt": "the word 472", "answer": "472"}\n')
    recipe = folder / "small.yaml"
    recipe.write_text(
        f"""\
# A small run.
model: {{path: {quickstart / "model"}, lora: {{rank: 16}}}}
data: {{train_files: {quickstart / "train.jsonl"}, val_files: {quickstart / "heldout.jsonl"}}}
algorithm: {{name: diffusion_nft, beta: 0.5}}
rewards: {{ocr: {{weight: 1.0}}, border_darkness: {{weight: 0}}}}
rollout: {{n: 12, num_inference_steps: 8}}
steps: 30
output_dir: {folder / "run"}
variants:
  flow_grpo: {{steps: 40, optimizer: {{lr: 2e-3}}, algorithm: {{clip: 1e-3}}}}
"""
    )
    return recipe
