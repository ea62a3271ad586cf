"""What pre-trains the small generators: their command lines, and the loop to the end of a schedule."""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

EMA_DECAY = 0.998
SEED = 0


def command_line(about: str, output: str, *, receives: str = "train.jsonl and heldout.jsonl") -> ArgumentParser:
    """What the command lines of all have: the seed, and the folder of the model and its data."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of weights, data and sampling ({SEED})")
    parser.add_argument(
        "--output", type=Path, default=Path(output), help=f"folder that receives model/, {receives} ({output})"
    )
    return parser


def check_steps(parser: ArgumentParser, options: Namespace, *names: str) -> None:
    """Refuse negative numbers of steps, and 0 of what is not there; each of ``names`` goes on from the one before."""
    there = (options.output / "model").is_dir()
    for name in names:
        value, option = getattr(options, name), "--" + name.replace("_", "-")
        if value < 0:
            parser.error(f"{option} is {value}; it must be 0 or more")
        if value == 0 and not there:
            parser.error(f"{option} 0 trains nothing, and {options.output} holds no model/: give more steps")
        there = there or value > 0


def repeatable() -> None:
    """Have the same seed give the same weights: more threads would add in another order, and change the last bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@dataclass
class Average:
    """Running mean of weights, which draws better than the last weights do."""

    weights: list[Tensor]
    mean: list[Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> Average:
        weights = [parameter.detach() for parameter in module.parameters()]
        return cls(weights, [weight.clone() for weight in weights])

    def update(self, step: int) -> None:
        # Early on the mean covers few steps, so that it forgets the random weights
        decay = min(EMA_DECAY, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.mean, self.weights, 1 - decay)

    def install(self) -> None:
        torch._foreach_copy_(self.weights, self.mean)


def fit(
    module: nn.Module,
    loss_of: Callable[[int], Tensor],
    *,
    steps: int,
    learning_rate: float,
    warmup: int,
    console: Console,
    name: str = "training",
) -> None:
    """Train a module on the loss of each step, to the end of a cosine, and leave the mean of its weights in it."""
    module.train()
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / warmup) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    average, smooth = Average.of(module), 0.0
    started = time.process_time()
    with progress(console) as bar:
        task = bar.add_task(name, total=steps, loss=math.nan)
        for step in range(steps):
            loss = loss_of(step)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            average.update(step)
            smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
            bar.update(task, advance=1, loss=smooth)
            if (step + 1) % 100 == 0:
                spent = time.process_time() - started
                bar.console.print(f"step {step + 1}: loss {smooth:.4f}, {spent:.0f} CPU-seconds")
    average.install()
    module.eval()


def progress(console: Console) -> Progress:
    """A bar that shows the loss."""
    loss = TextColumn("loss {task.fields[loss]:.4f}")
    name = TextColumn("{task.description}")
    return Progress(name, BarColumn(), MofNCompleteColumn(), loss, TimeRemainingColumn(), console=console)
