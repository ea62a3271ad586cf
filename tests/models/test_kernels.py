"""How networks run changes no number beyond rounding: checkpointing by block, attention backends, compiled blocks."""

import pytest
from diffusers.models import attention_dispatch

from tests.support.model_runs import refused, run_of
from tests.support.optional import seldom

CLOCK = ("mfu", "flops", "memory")


def numbers(files, model, *options, name="how", steps=1):
    run = run_of(files, model, *options, name=name)
    said = run.train(f"steps={steps}", "trainer.epochs=1")
    rows = [{key: value for key, value in row.items() if value is not None and not any(one in key for one in CLOCK)}
            for row in run.metrics]  # fmt: skip
    return rows, said


def same(found, expected, rel=1e-4, abs=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=rel, abs=abs)


RECOMPUTED = {
    "two adapters": ("flux", ["algorithm=diffusion_nft", "algorithm.train_timesteps=2", "algorithm.kl_coef=0.1"]),
    "lists": ("z-image", ["algorithm=flow_grpo"]), "other processors": ("sd3-pag", ["algorithm=flow_grpo"]),
    "a reference": ("llama", ["algorithm=grpo", "algorithm.kl.coef=0.1", "model.lora=null"]),
    "pictures": ("qwen2_5_vl", ["algorithm=grpo", "model.lora={rank: 2, vision: true}"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ["two adapters", *seldom("lists", "other processors", "a reference", "pictures")])
def test_all_blocks_or_the_first_ones_alone_are_computed_again(name, files):
    model, options = RECOMPUTED[name]
    expected = None
    for blocks in ("false", "1", "true"):
        recompute = f"model.gradient_checkpointing={blocks}"
        found, _ = numbers(files, model, *options, recompute, "trainer.mini_batch_size=null")
        expected = expected or found
        same(found, expected, rel=1e-5)


def test_an_attention_backend_is_compared_and_taken(files, monkeypatch, caplog):
    caplog.set_level("INFO")
    plain, _ = numbers(files, "flux")
    math, _ = numbers(files, "flux", "model.attention=_native_math")
    assert "model.attention=_native_math agrees with native to" in caplog.text
    same(math, plain, rel=1e-3, abs=1e-4)
    numbers(files, "llama", "model.attention=sdpa")
    assert "LlamaForCausalLM: padded rows" in caplog.text
    real = attention_dispatch.dispatch_attention_fn
    asked = set()

    def sloppy(*given, backend, **more):
        asked.add(backend.value)
        out = real(*given, backend=backend, **more)
        return out * 1.01 if backend.value == "_native_math" else out

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", sloppy)
    refused(files, "flux", "model.attention=_native_math", names=["_native_math", "0.01"])
    assert "_native_math" in asked


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("model", ["flux", "llama"])
def test_compiled_blocks_compute_the_same(model, files):
    compiled, _ = numbers(files, model, "model.compile=true", steps=2)
    same(compiled, numbers(files, model, steps=2)[0], rel=1e-3, abs=3e-4)
