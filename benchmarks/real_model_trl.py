"""One side of ``benchmarks.real_model``: TRL's GRPOTrainer, run by the Python of an environment that has TRL.

Its argument is a setting as JSON. It imports nothing of Burnish.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from benchmarks.language_meter import sums

PARTS = 8  # of a batch that learn one after the other: together their logits take 19 GB


def train(setting: dict[str, Any]) -> None:
    """Train for as many updates as the setting says, and write the adapters."""
    samples = setting["prompts"] * setting["n"]
    records = [json.loads(line) for line in Path(setting["train"]).read_text().splitlines()]
    rows = [
        {"prompt": [{"role": "user", "content": record["prompt"]}], "answer": record["answer"]} for record in records
    ]
    options = GRPOConfig(
        output_dir=setting["folder"], use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=samples // PARTS, gradient_accumulation_steps=PARTS,
        num_generations=setting["n"], max_completion_length=setting["tokens"],
        temperature=1.0, top_k=0, top_p=1.0, loss_type="grpo", scale_rewards="none", beta=0.0, num_iterations=1,
        learning_rate=setting["lr"], lr_scheduler_type="linear", warmup_steps=setting["warmup"], max_grad_norm=1.0,
        max_steps=setting["updates"], report_to="none", save_strategy="no", logging_strategy="no",
        dataloader_pin_memory=False, seed=setting["seed"],
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32),
        reward_funcs=sums,
        args=options,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(setting["model"], padding_side="left"),
        peft_config=LoraConfig(r=setting["rank"], lora_alpha=2 * setting["rank"], target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model(str(Path(setting["folder"]) / "lora"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(json.loads(sys.argv[1]))
