"""One row of the table of language models: a tiny model of a class, measured against its own forward."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.config import load
from burnish.language.decoders import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.model.base import Shown
from burnish.language.model.capabilities import MOVING, own_logprobs
from burnish.language.model.forwards import samples
from burnish.language.model.loading import load_language_model
from burnish.language.sampling import Sampling
from burnish.loop import run
from burnish.models.tiny import TinyLanguage
from burnish.models.tiny.language import write
from burnish.options.language import LanguageModelOptions
from burnish.tasks import assemble
from burnish.types.completion import Completion, Encoded, append_turn
from burnish.utils import random
from burnish.utils.errors import UserError

EXACT, ROUNDED = 1e-3, 0.1  # nats: largest in float32, mean in bfloat16
STEEP = 1e-2  # of gradients, relative to the largest
UPDATES = 5
RUNS = ("grpo", "ppo")  # of an adapter, and of all weights
TEMPERATURE = 0.8
OVERRIDES = [
    "data.train_batch_size=4", "rollout.n=2", "rollout.max_new_tokens=6", "validation.n=1",
    "scoring.processes=0", "optimizer.warmup_steps=0", "trainer.mini_batch_size=4", f"steps={UPDATES}",
    "rewards.exact=null",
]  # fmt: skip


@dataclass
class Row:
    """What was measured; NaN where it was not, or can't be."""

    name: str
    model: str
    reads: list[str]
    rows: str = ""  # that share a forward
    decoding: str = ""
    batch: float = math.nan  # the trainer's log-probs beside the class's own forward
    sampler: float = math.nan  # the sampler's
    greedy: str = ""  # tokens that are those of generate, of how many
    shared: float = math.nan  # responses that share their prompt
    gradients: float = math.nan
    turns: float = math.nan  # a second turn with an image
    half: float = math.nan  # sampler against trainer in bfloat16, mean
    grpo: int = 0  # updates
    ppo: int = 0
    adapter: float = math.nan  # log-probs of the exported adapter by peft
    weights: float = math.nan  # of exported weights by transformers
    refused: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.refused and not self.faults


def measure(tiny: TinyLanguage, folder: Path, runs: Sequence[str] = RUNS) -> Row:
    """Write a tiny model, and compare what is made of it, and of what it learns in ``runs``."""
    row = Row(tiny.name, tiny.kind, list(tiny.places))
    write(tiny, folder / "model", 0)
    try:
        model = loaded(folder / "model")
    except UserError as error:
        row.refused = str(error).partition(": ")[2] or str(error)
        return row
    known = model.capabilities
    row.rows = "packed" if known.packed else "padded" if known.padded else "alone"
    row.decoding = "own" if known.fast else "class" if known.cache != "none" else "no cache"
    prompts = prompts_of(model, tiny)
    sampled = sample(model, prompts)
    expected = own_logprobs_at(model, sampled, TEMPERATURE)
    row.sampler = largest(sampled.logprob, expected, sampled)
    row.batch = largest(scores(model, sampled, "padded"), expected, sampled)
    row.shared = largest(scores(model, sampled, "shared"), expected, sampled)
    row.greedy = greedy(model, prompts)
    row.gradients = gradients(model, sampled)
    if model.forwards.collation.appends.get("image"):
        row.turns = second_turn(model, prompts)
    half = loaded(folder / "model", dtype="bfloat16")
    rounded = sample(half, prompts)
    row.half = float((rounded.logprob - scores(half, rounded, "auto")).abs()[rounded.mask].mean())
    if "grpo" in runs:
        row.grpo, row.adapter = trained(folder, tiny, sampled, "grpo", ["model.lora.rank=4"])
    if "ppo" in runs:
        row.ppo, row.weights = trained(folder, tiny, sampled, "ppo", ["critic.warmup_updates=0"])
    judge(row, runs)
    return row


def judge(row: Row, runs: Sequence[str] = RUNS) -> None:
    """Note what is more than rounding, and of ``runs`` what did not learn."""
    for name in ("sampler", "batch", "shared", "turns", "adapter", "weights"):
        if getattr(row, name) > EXACT:
            row.faults.append(f"{name} differs by {getattr(row, name):.2g} nats")
    if row.gradients > STEEP:
        row.faults.append(f"gradients of shared prompts differ by {row.gradients:.2g}")
    if row.half > ROUNDED:
        row.faults.append(f"in bfloat16 sampler and trainer differ by {row.half:.2g} nats on average")
    same, _, every = row.greedy.partition("/")
    if same != every:
        row.faults.append(f"greedy responses have {same} of {every} tokens of generate")
    for name in runs:
        if (done := getattr(row, name)) != UPDATES:
            row.faults.append(f"{done} of {UPDATES} updates of {name.upper()}")


def loaded(folder: Path, dtype: str = "float32") -> Any:
    """The model of a directory, by its class's own forward."""
    options: Any = {"path": str(folder), "device": "cpu", "dtype": dtype}
    return load_language_model(LanguageModelOptions(**options))


def prompts_of(model: Any, tiny: TinyLanguage) -> Encoded:
    """None, one and three images of odd sizes, a video and a sound, as far as the class reads them."""
    images = samples("image")
    asked = [("How are you today, and why?", Shown()), ("Hi", Shown())]
    if "image" in tiny.places:
        asked += [("What is it?", Shown(images=images[:1])), ("Compare them", Shown(images=images))]
    if "video" in tiny.places and "video" in model.readable:
        asked.append(("What happens?", Shown(videos=samples("video", frames=model.least_frames)[:1])))
    if "audio" in tiny.places and "audio" in model.readable:
        asked.append(("What is said?", Shown(audios=samples("audio", model.audio_rate)[:1])))
    found = []
    for words, shown in asked:
        kinds = ("image", shown.images), ("video", shown.videos), ("audio", shown.audios)
        parts: list[dict[str, str]] = [{"type": kind} for kind, media in kinds for _ in media]
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": words}]}]
        try:
            found.append(model.encode(chat, shown))
        except ValueError:  # some read no prompt without an image, some no more than one
            continue
    return Encoded.cat(found)


def sample(model: Any, prompts: Encoded, *, temperature: float = TEMPERATURE, count: int = 3) -> Completion:
    """Responses to each of the prompts."""
    index = [row for row in range(len(prompts)) for _ in range(count)]
    keys = [random.key(0, "table", place) for place in range(len(index))]
    return decode(model, model.network, prompts, index, keys, Sampling(max_new_tokens=8, temperature=temperature))


def scores(model: Any, completion: Completion, layout: Any) -> Tensor:
    """Log-probs as the trainer computes them."""
    with torch.no_grad():
        return response_logprobs(model, model.network, completion, temperature=TEMPERATURE, layout=layout).logprob


def own_logprobs_at(model: Any, completion: Completion, temperature: float, network: Any = None) -> Tensor:
    """By the class's own forward of each response alone."""
    return own_logprobs(model, network or model.network, completion, model.capabilities.fill, temperature=temperature)


def largest(found: Tensor, expected: Tensor, completion: Completion) -> float:
    """The largest difference of log-probs."""
    return float((found - expected).abs()[completion.mask].max())


def greedy(model: Any, prompts: Encoded) -> str:
    """Tokens of greedy responses that ``generate`` writes, too."""
    ours, same, every = sample(model, prompts, temperature=0, count=1), 0, 0
    for row, (ids, features) in enumerate(zip(prompts.ids, prompts.features, strict=True)):
        given = dict(features.tensors) | {name: kind[None] for name, kind in features.kinds.items()}
        given = {name: value for name, value in given.items() if name in model.forwards.accepted}
        given |= {name: value.float() for name, value in given.items() if value.is_floating_point()}
        theirs = model.network.generate(
            input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], **given, max_new_tokens=8, do_sample=False,
            use_cache=model.capabilities.fast or model.capabilities.cache != "none",
            eos_token_id=list(model.stop), pad_token_id=model.stop[0],
            suppress_tokens=model.banned.tolist() or None,
        )[0, len(ids) :]  # fmt: skip
        length = int(ours.length[row])
        own = ours.ids[row, :length]
        every += length
        same += int((own[: len(theirs)] == theirs[:length]).sum())
    return f"{same}/{every}"


def gradients(model: Any, completion: Completion) -> float:
    """Of shared prompts beside separate ones, relative to the largest, in the first matrix of the decoder."""
    weight = next(value for value in model.text(model.network).parameters() if value.ndim == 2)
    found = []
    for layout in ("padded", "shared"):
        weight.requires_grad_(True)
        logprob = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout).logprob
        weights = torch.linspace(-1, 1, logprob.numel()).view_as(logprob)
        found.append(torch.autograd.grad((logprob * weights).sum(), weight)[0])
        weight.requires_grad_(False)
    return float((found[0] - found[1]).abs().max() / found[0].abs().max())


def second_turn(model: Any, prompts: Encoded) -> float:
    """A response after a turn that shows another image: sampler against the class's own forward."""
    media = [set(own.tensors) for own in prompts.features]
    seen = [number for number, names in enumerate(media) if names and not any(k in n for n in names for k in MOVING)]
    first = prompts.select(seen[-1:])  # some can't tell a video beside images of the same prompt
    response = sample(model, first, count=1).ids[0, :4]
    image = samples("image")[1]
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And this?"}]}]
    second = append_turn(first, response, model.turn(response.tolist(), chat, Shown(images=[image])))
    sampled = sample(model, Encoded.cat([second, prompts.select([0])]))
    return largest(sampled.logprob, own_logprobs_at(model, sampled, TEMPERATURE), sampled)


def trained(
    folder: Path, tiny: TinyLanguage, completion: Completion, algorithm: str, more: Sequence[str]
) -> tuple[int, float]:
    """Updates whose gradients are finite and not 0; and the exported weights' log-probs beside the policy's."""
    data = questions(folder, tiny)
    assembly: Any = assemble(
        load("vlm_quickstart", [
            f"model.path={folder / 'model'}", "model.device=cpu", "model.dtype=float32",
            f"output_dir={folder / algorithm}", f"algorithm={algorithm}", f"data.train_files={data}",
            f"data.val_files={data}", f"rewards.letters={{name: function, path: '{Path(__file__)}:letters'}}",
            *OVERRIDES, *more,
        ])
    )  # fmt: skip
    assembly.check_data()
    assembly.check()
    rows: list[dict[str, float]] = []

    def keep(update: int, metrics: Any) -> None:
        rows.append(dict(metrics))

    run(range(1, UPDATES + 1), assembly.source, assembly.workers, [keep], watch=assembly.watch, stop=lambda: False)
    good = sum(math.isfinite(row["actor/grad_norm"]) and row["actor/grad_norm"] > 0 for row in rows)
    model, target = assembly.roles.model, folder / f"{algorithm}-exported"
    policy = assembly.roles.network_of("policy")
    with torch.no_grad(), assembly.roles.active("policy") as network:
        ours = response_logprobs(model, network, completion, temperature=1.0).logprob
        if assembly.config.model.lora is not None:
            model.save_lora(target, policy)
        else:
            model.save(target, dict(network.state_dict()))
    return good, largest(ours, exported(model, folder / "model", target, completion), completion)


def exported(model: Any, base: Path, target: Path, completion: Completion) -> Tensor:
    """Log-probs by what transformers and peft load."""
    from peft import PeftModel

    kind = type(model)
    adapter = (target / "adapter_config.json").is_file()
    network = kind._network(base if adapter else target, torch.float32).eval()
    if adapter:
        network = PeftModel.from_pretrained(network, str(target)).eval().get_base_model()
    return own_logprobs_at(model, completion, 1.0, network)


def questions(folder: Path, tiny: TinyLanguage) -> Path:
    """A file of questions with none, one and three images."""
    file = folder / "questions.jsonl"
    lines: list[dict[str, Any]] = [{"prompt": f"What is {number} + 1?", "answer": "1"} for number in range(4)]
    if "image" in tiny.places:
        for number, image in enumerate(samples("image")):
            image.save(folder / f"{number}.png")
        names = [f"{number}.png" for number in range(3)]
        lines = lines[: 0 if tiny.name == "paligemma" else 2]
        lines += [{"prompt": "<image>What is it?", "images": names[:1], "answer": "1"} for _ in range(2)]
        lines += [{"prompt": "<image><image><image>Compare", "images": names, "answer": "1"} for _ in range(2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def letters(responses: Any, prompts: Any) -> list[float]:
    """A reward: the fraction of letters."""
    return [sum(one.isalpha() for one in response.text) / max(len(response.text), 1) for response in responses]
