"""Code that loads pushed weights with the libraries that everybody has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from burnish.options.language import LanguageModelOptions
from burnish.options.vllm import RANKS, unreadable

if TYPE_CHECKING:
    from burnish.tasks import Assembly

_CLASSES = re.compile(r"(?<![\w.])([A-Z]\w+)\.from_pretrained")
MODULES = ("peft", "safetensors.torch")


def loading_code(assembly: Assembly, repo: str, what: Literal["lora", "merged"], hub: str | None) -> list[str]:
    """Python that loads a repository of the hub, to copy and run.

    Args:
        assembly: whose weights were pushed.
        repo: org/name.
        what: an adapter, or the full model.
        hub: the base model's name there, if it has one.
    """
    base = Path(hub or "FOLDER/OF/THE/BASE/MODEL") if what == "lora" else Path(repo)
    lines = assembly.loading_lines(base, Path(repo) if what == "lora" else None)
    files = any(f'"{repo}/' in line for line in lines)
    if files:  # names of files, which libraries find in folders alone
        lines = [line.replace(f'"{repo}/', 'f"{folder}/').replace(f'"{repo}"', "folder") for line in lines]
        lines.insert(0, f'folder = snapshot_download("{repo}")')
    text = "\n".join(lines)
    classes = sorted({name for name in _CLASSES.findall(text) if name != "PeftModel"})
    if assembly.library == "transformers":
        lines.append(f'processor = AutoProcessor.from_pretrained("{base}")')
        classes.insert(0, "AutoProcessor")
    else:
        lines.append(f'out = pipe("a prompt"{_sampling(assembly)})')
    imports = [f"import {name}" for name in MODULES if f"{name}." in text]
    imports += [f"from {assembly.library} import {', '.join(classes)}"]
    imports += ["from huggingface_hub import snapshot_download"] if files else []
    return [*imports, "", *lines]


def _sampling(assembly: Assembly) -> str:
    """Arguments of a pipeline as the run validated."""
    config = assembly.config
    found = ""
    for name in ("num_inference_steps", "height", "width"):
        value = getattr(config.validation, name, None) or getattr(config.rollout, name, None)
        found += f", {name}={value}" if value is not None else ""
    return found


def serving_code(assembly: Assembly, repo: str, what: Literal["lora", "merged"], hub: str | None) -> list[str]:
    """A command of vLLM's that serves a language model; none for what vLLM can't serve."""
    model = assembly.config.model
    if not isinstance(model, LanguageModelOptions) or assembly.needs.heads:
        return []
    if what == "merged":
        return [f"vllm serve {repo}"]
    if hub is None or model.lora is None or any(unreadable(model.lora)):
        return []
    rank = min(rank for rank in RANKS if rank >= model.lora.rank)
    return [f"vllm serve {hub} --enable-lora --max-lora-rank {rank} --lora-modules {repo.partition('/')[2]}={repo}"]
