"""What a rollout costs a GPU beside its networks: nobody waits in a denoising step, and every network runs as often as
the steps and the branches of guidance need."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from burnish.config import load
from burnish.diffusion.engine import FlowJob
from burnish.diffusion.options import ModelOptions
from burnish.language.decoders import decode
from burnish.language.logprobs import response_logprobs
from burnish.language.model.loading import load_language_model
from burnish.language.sampling import Sampling
from burnish.models.tiny import describe
from burnish.tasks import assemble
from burnish.types.completion import Completion
from tests.golden.runs import HALVES
from tests.support.language_samples import encode_all
from tests.support.optional import seldom
from tests.support.pretend_gpu import PretendGpu
from tests.support.tiny_language import tiny_language
from tests.support.tiny_run import TinyRun

pytestmark = pytest.mark.slow

EDITS = "data.train_files={files}/edits.jsonl"
LTX2 = HALVES["generators"]["diffusion_nft streams"][1][1:]
FEW, MANY, SAMPLES = 4, 10, 2  # denoising steps, and samples of each of two prompts
MODELS = [
    ("qwen-image", []), ("sdxl-controlnet", [EDITS]), ("wan2.2", ["rollout.num_frames=5"]),
    *seldom(
        ("sd3", []), ("flux", []), ("qwen-image-edit", [EDITS]), ("wan2.1", ["rollout.num_frames=5"]),
        ("ltx", ["rollout.num_frames=9"]),
        ("ltx2", LTX2),
    ),
]  # fmt: skip


def counted(pipeline: Any) -> Counter[str]:
    found = Counter[str]()
    for name in ("transformer", "transformer_2", "unet"):
        part: nn.Module | None = getattr(pipeline, name, None)

        def note(_: nn.Module, args: Any, given: Any, name: str = name) -> None:
            found[name] += len(given["hidden_states"] if "hidden_states" in given else given["sample"])

        if part is not None:
            part.register_forward_pre_hook(note, with_kwargs=True)
    return found


def run_of(files: Path, model: str, *options: str) -> TinyRun:
    tiny = describe(model)
    given = ["algorithm=flow_grpo", "model.device=cuda", "model.dtype=bfloat16", "forecast=off"]
    size = [f"rollout.height={tiny.height or 'null'}", f"rollout.width={tiny.width or 'null'}"]
    return TinyRun(files, "generators", model, *given, *size, "rollout.guidance_scale=3", *options)


@pytest.mark.parametrize(("model", "options"), MODELS)
def test_nobody_waits_in_a_denoising_step(model: str, options: list[str], files: Path) -> None:
    run, counts, rows = run_of(files, model, *options), [], []
    for steps in (FEW, MANY):
        with PretendGpu() as gpu:
            overrides = [*run.options, f"rollout.num_inference_steps={steps}", "rollout.batch_size=96"]
            assembly = assemble(load(str(run.recipe), overrides))
            job = FlowJob.groups(assembly.train_prompts, SAMPLES, purpose="rollout", update=1)
            list(assembly.engine.sample(job))  # compares, and records
            before = {kind: gpu.count(kind) for kind in ("sync", "to device")}
            rows.append(counted(assembly.roles.model.pipeline))
            list(assembly.engine.sample(job))
            counts.append({kind: gpu.count(kind) - number for kind, number in before.items()})
    further = MANY - FEW
    assert counts[1]["sync"] == counts[0]["sync"], gpu.lines("sync")
    assert counts[1]["to device"] - counts[0]["to device"] <= further, gpu.lines("to device")
    for steps, found in zip((FEW, MANY), rows, strict=True):
        assert sum(found.values()) == steps * 2 * 2 * SAMPLES, "the rows of a step are its samples with both branches"


@pytest.mark.parametrize(("model", "options"), [
    ("wan2.2", ["rollout.num_frames=5", "model.networks=[transformer]"]), *seldom(("ltx2", LTX2)), ("qwen-image", []),
])  # fmt: skip
def test_what_is_offloaded_comes_once_in_a_rollout(model: str, options: list[str], files: Path) -> None:
    """With every sample a batch of its own; and encoders come while nothing is there that denoises but adapters."""
    few = ["model.offload=true", "model.lora.rank=4", "rollout.batch_size=1", "rollout.num_inference_steps=6"]
    run, came = run_of(files, model, *few, *options), Counter[int]()
    with PretendGpu():
        assembly = assemble(load(str(run.recipe), run.options))
        prompts, parts = assembly.train_prompts, assembly.roles.model
        list(assembly.engine.sample(FlowJob.groups(prompts[:1], SAMPLES, purpose="rollout", update=1)))
        encoders = [part for part in parts.away if part.part in parts.text_encoders.values()]
        denoisers = [*parts.bases, *(part for part in parts.away if part.part in parts.experts.values())]

        def noted(part: Any, bring: Any) -> None:
            if part.is_away:
                came[id(part)] += 1
                assert part not in encoders or all(other.is_away for other in denoisers)
            bring()

        for part in (*parts.away, *parts.bases):
            part.bring = partial(noted, part, part.bring)
        list(assembly.engine.sample(FlowJob.groups(prompts[1:3], SAMPLES, purpose="rollout", update=2)))
    assert {came[id(part)] for part in (*encoders, *denoisers)} == {1}
    assert max(came[id(part)] for part in parts.away if hasattr(part.part, "decode")) <= 1


@pytest.mark.parametrize("family", ["qwen2_5_vl", *seldom("llama")])
def test_tokens_are_replayed_at_the_addresses_they_were_captured_with(family: str, tmp_path: Path) -> None:
    """Rows that end, that wait for room, and that nobody saw end: what a graph recorded once gives the CPU's tokens."""
    folder, found, counts = tiny_language(tmp_path, family), {}, {}
    options = {"top_p": 0.9, "repetition_penalty": 1.1, "min_new_tokens": 3, "stop": tuple("aeiou")}
    for device in ("cpu", "cuda"):
        with PretendGpu() as gpu:
            model = load_language_model(ModelOptions(path=str(folder), device=device))
            prompts = encode_all(model, family)
            index = [row for row in range(len(prompts)) for _ in range(12)]

            def sample(tokens: int, rows: int, **more: Any) -> Completion:
                sampling = Sampling(max_new_tokens=tokens, **more)
                return decode(model, model.network, prompts, index, range(len(index)), sampling, batch_size=rows)  # noqa: B023

            found[device] = sample(64, 5, **options)
            for tokens in (FEW, FEW + 64):
                before = Counter({kind: gpu.count(kind) for kind in ("replay", "sync")})
                sample(tokens, 64, min_new_tokens=tokens)
                counts[tokens] = {kind: gpu.count(kind) - number for kind, number in before.items()}
            before = gpu.count("sync")
            response_logprobs(model, model.network, found[device], temperature=1.0)
            learning = gpu.count("sync") - before
    assert torch.equal(found["cuda"].ids, found["cpu"].ids)
    assert torch.equal(found["cuda"].finished, found["cpu"].finished)
    torch.testing.assert_close(found["cuda"].logprob, found["cpu"].logprob, rtol=0, atol=1e-5)
    assert len(set(found["cpu"].length.tolist())) > 3, "all end alike"
    assert learning <= (0 if family == "llama" else 20), gpu.lines("sync")  # indices that its class has on the CPU
    further = {kind: number - counts[FEW][kind] for kind, number in counts[FEW + 64].items()}
    assert further["sync"] <= 64 / 8
    assert further["replay"] >= 2 * 64 - 4, "shapes change in between"
