"""Trains the model that the second quickstart improves: it reads digits, and often forgets how to answer.

    python tools/tiny_vlm.py --output build/vlm_quickstart --evaluate

A supervised warm-up on handwritten digits, on one thread; the same seed gives the same bytes on one machine.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from tiny_training import check_steps, command_line, repeatable
from tiny_vlm_data import QUESTIONS, Question, ask, scans, split, write_data, write_lines, write_turned
from tiny_vlm_model import END, MERGE, VOCABULARY, build_image_processor, build_model, build_tokenizer, load, save
from torch import Tensor, nn

from burnish.utils.random import generator, key

STEPS = 800
BATCH = 64
LEARNING_RATE, WARMUP = 2e-3, 40
SAMPLES, NEW_TOKENS = 8, 12  # of the evaluation, as the quickstart samples
PREFERENCES = 256  # prompts whose samples become pairs
ANSWER = re.compile(r".*?<answer>(.*?)</answer>", re.DOTALL)
IGNORED = -100


@dataclass(frozen=True)
class Tools:
    """What turns questions into tensors."""

    tokenizer: Any
    pixels: Tensor  # [images, patches, values]
    grid: Tensor  # [3] of every image

    @classmethod
    def of(cls, tokenizer: Any, processor: Any) -> Tools:
        """Every image goes through the processor once."""
        made = processor([Image.fromarray(scan) for scan in scans()[0]], return_tensors="pt")
        return cls(tokenizer, made.pixel_values.unflatten(0, (len(scans()[0]), -1)), made.image_grid_thw[0])

    def prompt(self, question: Question) -> list[int]:
        """Token ids, with as many placeholders as the images have tokens."""
        parts: list[dict[str, str]] = [{"type": "image"} for _ in question.images]
        parts.append({"type": "text", "text": QUESTIONS[question.task]})
        message = [{"role": "user", "content": parts}]
        text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        tokens = int(self.grid.prod()) // MERGE**2
        ids: list[int] = self.tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * tokens)).input_ids
        return ids

    def batch(self, questions: Sequence[Question], replies: Sequence[str] | None = None) -> dict[str, Tensor]:
        """What the network reads: without replies padded on the left, with them on the right and with labels."""
        prompts = [self.prompt(question) for question in questions]
        ends = [self.tokenizer(reply + END).input_ids for reply in replies or ()] or [[]] * len(prompts)
        longest = max(len(prompt) + len(end) for prompt, end in zip(prompts, ends, strict=True))
        ids = torch.full((len(prompts), longest), self.tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for row, (prompt, end) in enumerate(zip(prompts, ends, strict=True)):
            start = 0 if replies else longest - len(prompt)
            ids[row, start : start + len(prompt) + len(end)] = torch.tensor([*prompt, *end])
            mask[row, start : start + len(prompt) + len(end)] = 1
            labels[row, start + len(prompt) : start + len(prompt) + len(end)] = torch.tensor(end, dtype=torch.long)
        images = torch.tensor([image for question in questions for image in question.images])
        read = {
            "input_ids": ids,
            "attention_mask": mask,
            "mm_token_type_ids": (ids == self.tokenizer.convert_tokens_to_ids("<|image_pad|>")).long(),
            "pixel_values": self.pixels[images].flatten(0, 1),
            "image_grid_thw": self.grid.expand(len(images), 3),
        }
        return read | {"labels": labels} if replies else read


def draw(images: Sequence[int], *, seed: int, step: int) -> tuple[list[Question], list[str]]:
    """Questions and replies of a step: a function of the seed and the step alone."""
    draws = generator(seed, "warmup", step)
    tasks = torch.randint(len(QUESTIONS), (BATCH,), generator=draws).tolist()
    asked = [ask(list(QUESTIONS)[task], images, draws) for task in tasks]
    return asked, [question.reply(draws) for question in asked]


def warm_up(*, steps: int, seed: int, vocabulary: int, console: Console) -> tuple[Any, Any]:
    """Train all weights on right answers in several styles, to the end of a schedule made for this many steps."""
    tokenizer = build_tokenizer(vocabulary)
    model, tools = build_model(seed, tokenizer).train(), Tools.of(tokenizer, build_image_processor())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    started, smooth = time.process_time(), 0.0
    with Progress(console=console) as bar:
        task = bar.add_task("warm-up", total=steps)
        for step in range(steps):
            loss = model(**tools.batch(*draw(split(seed).warmup, seed=seed, step=step))).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
            bar.update(task, advance=1)
            if (step + 1) % 100 == 0:
                spent = time.process_time() - started
                bar.console.print(f"step {step + 1}: loss {smooth:.4f}, {spent:.0f} CPU-seconds")
    return model.eval(), tokenizer


@torch.no_grad()
def sample(folder: Path, questions: Sequence[Question], *, seed: int, greedy: bool = False) -> list[list[str]]:
    """Responses as transformers samples them at temperature 1: SAMPLES to each question, or one."""
    model, tokenizer, processor = load(folder / "model")
    tools, count = Tools.of(tokenizer, processor), 1 if greedy else SAMPLES
    torch.manual_seed(key(seed, "evaluate"))
    found: list[list[str]] = []
    for start in range(0, len(questions), BATCH):
        read = tools.batch(questions[start : start + BATCH])
        how: dict[str, Any] = {} if greedy else {"top_k": 0, "top_p": 1.0, "num_return_sequences": count}
        ids = model.generate(**read, max_new_tokens=NEW_TOKENS, do_sample=not greedy, **how)
        texts = tokenizer.batch_decode(ids[:, read["input_ids"].shape[1] :], skip_special_tokens=True)
        found += [texts[i : i + count] for i in range(0, len(texts), count)]
    return found


def right(response: str, question: Question) -> bool:
    """Whether a response is the right answer in its tags, with nothing after them."""
    found = ANSWER.fullmatch(response)
    return found is not None and found.group(1).strip() == question.answer


def evaluate(folder: Path, *, seed: int, console: Console) -> None:
    """Answer the held-out questions, and say how well."""
    asked = read_questions(folder / "heldout.jsonl")
    for name, responses in (
        ("temperature 1", sample(folder, asked, seed=seed)),
        ("greedy", sample(folder, asked, seed=seed, greedy=True)),
    ):
        pairs = [(text, question) for texts, question in zip(responses, asked, strict=True) for text in texts]
        for task in (None, *QUESTIONS):
            chosen = [(text, question) for text, question in pairs if task in (None, question.task)]
            strict = sum(right(text, question) for text, question in chosen) / len(chosen)
            form = sum(ANSWER.fullmatch(text) is not None for text, _ in chosen) / len(chosen)
            figures = f"strict {strict:.3f}, format {form:.3f}, strict where formatted {strict / max(form, 1e-9):.3f}"
            console.print(f"{name}, {task or 'all'}: {figures}", soft_wrap=True)


def read_questions(path: Path) -> list[Question]:
    """The questions of a data file."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Question(r["data_source"], tuple(int(Path(image).stem) for image in r["images"])) for r in records]


def write_preferences(folder: Path, *, seed: int) -> None:
    """Write preferences.jsonl and unpaired.jsonl: what the model itself says to training prompts, judged."""
    asked = read_questions(folder / "train.jsonl")[:PREFERENCES]
    pairs, single = [], []
    for question, responses in zip(asked, sample(folder, asked, seed=seed), strict=True):
        good = [response for response in responses if right(response, question)]
        bad = [response for response in responses if not right(response, question)]
        if good and bad:
            pairs.append(question.record() | {"chosen": good[0], "rejected": bad[0]})
            for response, label in ((good[0], True), (bad[0], False)):
                single.append(question.record() | {"completion": response, "label": label})
    write_lines(folder / "preferences.jsonl", pairs)
    write_lines(folder / "unpaired.jsonl", single)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__ or "", "build/vlm_quickstart", receives="images/ and the data files")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"optimizer steps, 0 trains nothing ({STEPS})")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help=f"tokens of its tokenizer ({VOCABULARY})")
    parser.add_argument(
        "--evaluate", action="store_true",
        help="answer the held-out questions; with --steps 0 by the model that is there already",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    check_steps(parser, options, "steps")
    console = Console(highlight=False)
    repeatable()
    if options.steps > 0:
        options.output.mkdir(parents=True, exist_ok=True)
        made = warm_up(steps=options.steps, seed=options.seed, vocabulary=options.vocabulary, console=console)
        save(*made, options.output / "model")
        write_data(options.output, options.seed)
        write_turned(options.output, options.seed)
        write_preferences(options.output, seed=options.seed)
    if options.evaluate:
        evaluate(options.output, seed=options.seed, console=console)


if __name__ == "__main__":
    main()
