"""Pipelines of any class: gradients, what is left of a run, classes that nobody has seen, and what is refused."""

from __future__ import annotations

import json
import threading

import diffusers
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import burnish
from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.flow.stand_ins import of_its_precision
from burnish.models.flow.universal import FORMS, Universal
from burnish.models.lora import add_adapters
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.models.tiny.calls import media
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from tests.support.tiny_recipes import reward, write_recipe, write_rewards
from tests.support.unseen import (
    BrokenPipeline,
    LatePipeline,
    OddPainter,
    OddScheduler,
    UnseenPipeline,
    add_to_diffusers,
    write_unseen,
)

GUIDANCE = 3.0
# rows of one prompt's size, lists of sequences, two experts, a first frame, and a picture that is joined to the state
KINDS = ["qwen-image", "z-image", "wan2.2", "ltx-i2v", "flux-kontext"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")

    def one(name):
        if not (folder / name).exists():
            write(describe(name), folder / name, seed=0)
        return folder / name

    return one


def load(path, tiny, **options):
    size = {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    rollout = RolloutOptions(
        batch_size=96, num_inference_steps=4, guidance_scale=GUIDANCE, call=dict(tiny.call), **size
    )
    return load_model(ModelOptions(path=str(path), family="pipeline", **options), rollout)


def rows(model, tiny):
    """Rows of two prompts at several times."""
    import numpy as np

    seen = tuple(Media.array(np.asarray(media(kind, tiny, 0))) for kind in tiny.inputs.values())
    prompts = [Prompt(text=text, negative="grey", images=seen) for text in ("a red fox", "two apples on the table")]
    drawing = Drawing(height=tiny.height, width=tiny.width, steps=4)
    asked = model.condition([prompts[i] for i in (0, 1, 0, 1)], drawing)
    model.verify(asked, guidance=GUIDANCE)
    x = model.start(asked, drawing, [("row", i) for i in range(4)])
    times = model.schedule(asked, drawing)
    return asked, x, times[torch.tensor([0, 0, 2, 3])]


def gradients(model, given, parts):
    """Of a loss over all rows, computed in these parts."""
    asked, x, times = given
    network = model.network
    network.zero_grad()
    for part in parts:
        at = torch.tensor(part)
        some = asked.select(at).rows()
        velocity = model.predict(network, x[at], times[at], some, some, guidance=GUIDANCE)
        weight = torch.tensor([1.0, -2.0, 3.0, 0.5])[at].view(-1, *[1] * (velocity.ndim - 1))
        (velocity.square() * weight).sum().backward()
    return {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}


def close(found, expected):
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-3, atol=1e-5 * largest, msg=lambda text, n=name: n + text
        )


@pytest.mark.parametrize("name", KINDS)
def test_gradients_depend_neither_on_micro_batches_nor_on_what_shares_a_forward(name, written, monkeypatch):
    tiny = describe(name)
    model = load(written(name), tiny)
    model.network.requires_grad_(True)
    given = rows(model, tiny)
    alone = gradients(model, given, [[0], [1], [2], [3]])
    assert alone
    close(gradients(model, given, [[0, 1, 2, 3]]), alone)
    close(gradients(model, given, [[3, 1], [0, 2]]), alone)
    monkeypatch.setattr(model, "form", lambda *_: FORMS[-1])
    close(gradients(model, given, [[0, 1, 2, 3]]), alone)


def test_rows_share_a_forward_only_at_the_sizes_at_which_they_may(written, monkeypatch):
    tiny = describe("sd3")
    model, small = load(written("sd3"), tiny), tiny.height
    own = model.forwards.all

    def wrong_together(networks, calls, parts, agree=None):
        """Of rows of the small size that share a forward, other numbers."""
        outputs = list(own(networks, calls, parts, agree))
        states = [next(leaf for leaf in tree_leaves(call.arguments) if getattr(leaf, "ndim", 0) == 4) for call in calls]
        together = any(sum(len(states[i]) for i in part) > 1 for part in parts)
        wrong = together and width == states[0].shape[-1]
        return iter(tree_map(lambda value: value * 1.5, outputs) if wrong else outputs)

    monkeypatch.setattr(model.forwards, "all", wrong_together)

    def asked(size):
        return model.condition([Prompt(text="a"), Prompt(text="b")], Drawing(height=size, width=size, steps=4))

    width = model.start(asked(small), Drawing(height=small, width=small, steps=4), [("row", 0), ("row", 1)]).shape[-1]
    chosen = []
    for size in (small, 2 * small, small):
        model.verify(asked(size), guidance=1.0)
        chosen.append(model.form(asked(size).rows(), 1.0))
    assert chosen == [FORMS[-1], FORMS[0], FORMS[-1]]


@pytest.mark.parametrize("name", ["z-image", "sd3"])
def test_what_was_checked_without_guidance_is_checked_again_with_it(name, written):
    tiny = describe(name)
    model = load(written(name), tiny)
    drawing = Drawing(height=tiny.height, width=tiny.width, steps=4)
    asked = model.condition([Prompt(text=text) for text in ("a red fox", "two apples")] * 2, drawing)
    model.verify(asked, guidance=1.0)
    x, times = model.start(asked, drawing, [("row", i) for i in range(4)]), model.schedule(asked, drawing)[[1] * 4]

    def velocities(guidance, parts):
        some = [asked.select(part).rows() for part in parts]
        found = [
            model.predict(model.network, x[part], times[part], one, one, guidance=guidance)
            for part, one in zip(parts, some, strict=True)
        ]
        return torch.cat(found)

    with torch.no_grad():
        for guidance in (3.0, 1.0):
            model.verify(asked, guidance=guidance)
            together, alone = velocities(guidance, [[0, 1, 2, 3]]), velocities(guidance, [[0], [1], [2], [3]])
            torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", KINDS[:3])
def test_recomputed_activations_give_the_same_gradients(name, written):
    tiny = describe(name)
    found = []
    for recompute in (False, True):
        model = load(written(name), tiny)
        if recompute:
            for network in model.networks.values():
                network.enable_gradient_checkpointing()
        add_adapters(model.network, LoraOptions(rank=2), ["policy"], seed=0, default_targets=model.lora_targets)
        for key, value in model.network.named_parameters():
            if "lora_B" in key:  # adapters begin as nothing
                torch.nn.init.normal_(value, generator=torch.Generator().manual_seed(len(key)))
        found.append(gradients(model, rows(model, tiny), [[0, 1, 2, 3]]))
    close(found[1], found[0])
    assert all("lora" in key for key in found[0])


class Raised(Exception):
    pass


@pytest.mark.parametrize("name", ["wan2.2", "flux-kontext"])
def test_nothing_is_left_of_a_run(name, written):
    tiny = describe(name)
    model = load(written(name), tiny)
    pipeline = model.pipeline
    before = {key: id(value) for key, value in vars(pipeline).items()}
    given = rows(model, tiny)
    threads = threading.active_count()  # libraries start their own at first
    model.decode(given[1], given[0].rows())

    def fail(*_):
        raise Raised

    hooks = [network.register_forward_pre_hook(fail) for network in model.networks.values()]
    with pytest.raises(Raised):
        gradients(model, given, [[0]])
    for hook in hooks:
        hook.remove()
    assert {key: id(value) for key, value in vars(pipeline).items()} == before
    assert type(pipeline) is getattr(diffusers, tiny.pipeline)
    assert type(pipeline.scheduler).__module__.startswith("diffusers.")
    assert "step" not in vars(pipeline.scheduler)
    for part in pipeline.components.values():
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            assert not {"forward", "encode", "decode"} & set(vars(module))
    assert threading.active_count() == threads
    assert torch.is_grad_enabled()


def test_a_class_that_nobody_has_seen_is_trained(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    write_unseen(tmp_path / "pipeline")
    write_rewards(tmp_path)
    recipe = {
        "algorithm": "flow_grpo",
        "model": {"path": str(tmp_path / "pipeline"), "lora": {"rank": 4}},
        "data": {"train_files": str(tmp_path / "prompts.txt"), "train_batch_size": 2},
        "rewards": {"brightness": reward(tmp_path, "brightness")},
        "rollout": {"n": 8, "num_inference_steps": 4, "guidance_scale": 2.0, "call": {"side": 4}},
        "optimizer": {"lr": 2e-2}, "scoring": {"processes": 0}, "steps": 12, "output_dir": str(tmp_path / "run"),
        "validation": {"every": 0},
    }  # fmt: skip
    (tmp_path / "prompts.txt").write_text("a cat\ntwo dogs\n")
    run = burnish.train(burnish.load(str(write_recipe(tmp_path / "unseen.yaml", recipe))))
    assert run.finished
    rewards = [row["critic/rewards/mean"] for row in run.metrics if "critic/rewards/mean" in row]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 5  # of 255
    assert max(row.get("rollout_corr/logprob_abs_diff", 0.0) for row in run.metrics) < 1e-5


def test_an_error_of_the_pipelines_own_call_is_told_with_its_place(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = write_unseen(tmp_path, BrokenPipeline)
    model = load_model(ModelOptions(path=str(path)), RolloutOptions(batch_size=96, num_inference_steps=4))
    asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
    said = r"a BrokenPipeline can't be drawn from .*ended with KeyError: 'offset' \(unseen.py, line \d+\)"
    with pytest.raises(UserError, match=said):
        model.verify(asked, guidance=2.0)


def test_what_begins_late_in_a_run_is_found_without_running_it(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = write_unseen(tmp_path, LatePipeline)
    for steps in (5, 8):
        model = load_model(ModelOptions(path=str(path)), RolloutOptions(batch_size=96, num_inference_steps=steps))
        asked = model.condition([Prompt(text="a cat")], Drawing(steps=steps))
        if steps == 5:
            model.verify(asked, guidance=2.0)
        else:
            with pytest.raises(UserError, match="its step 6 of 8 does something else than the same step by itself"):
                model.verify(asked, guidance=2.0)


def test_outputs_that_nobody_can_look_into_are_refused(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = write_unseen(tmp_path, painter=OddPainter)
    model = load_model(ModelOptions(path=str(path)), RolloutOptions(batch_size=96, num_inference_steps=4))
    asked = model.condition([Prompt(text="a cat")], Drawing(steps=4))
    with pytest.raises(UserError, match="its painter returns a SimpleNamespace, whose tensors can't be found"):
        model.verify(asked, guidance=2.0)


def test_a_scheduler_that_takes_predictions_for_something_else_is_refused(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    model = load_model(
        ModelOptions(path=str(write_unseen(tmp_path))), RolloutOptions(batch_size=96, num_inference_steps=4)
    )
    model.pipeline.scheduler = OddScheduler(shift=3.0)
    odd = Universal(model.pipeline, ModelOptions(path=str(tmp_path)), model.rollout, compute=torch.float32)
    asked = odd.condition([Prompt(text="a cat")], Drawing(steps=4))
    with pytest.raises(UserError, match=r"last step of its OddScheduler ends \d\S* \(relative\) from the sample"):
        odd.verify(asked, guidance=2.0)


def test_only_what_its_call_takes_can_be_asked_for(tmp_path, monkeypatch):
    add_to_diffusers(monkeypatch)
    path = str(write_unseen(tmp_path, UnseenPipeline))
    with pytest.raises(UserError, match=r"rollout\.height is 32, but a UnseenPipeline takes no height"):
        load_model(ModelOptions(path=path), RolloutOptions(batch_size=96, height=32))
    with pytest.raises(UserError, match=r"rollout\.call has 'size', .* it takes side"):
        load_model(ModelOptions(path=path), RolloutOptions(batch_size=96, call={"size": 8}))


def test_a_frozen_network_reads_the_state_in_its_own_precision():
    part = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    part.dtype = torch.bfloat16
    read, state = of_its_precision(part), torch.ones(1, 2)
    assert read(state).dtype == torch.bfloat16


def test_a_guider_with_a_memory_is_named_with_what_turns_it_off(tmp_path):
    tiny, steps = describe("hunyuan-image"), 12
    write(tiny, tmp_path, seed=0)

    def tried():
        size = {"height": tiny.height, "width": tiny.width}
        model = load_model(
            ModelOptions(path=str(tmp_path)), RolloutOptions(batch_size=96, num_inference_steps=steps, **size)
        )
        asked = model.condition([Prompt(text="a cat")], Drawing(steps=steps, **size))
        model.verify(asked, guidance=1.0)

    with pytest.raises(UserError, match=r"AdaptiveProjectedMixGuidance.*off with .* in guider/guider_config\.json"):
        tried()
    for file in tmp_path.glob("*guider/guider_config.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"enabled": False}))
    tried()


def test_half_of_a_prediction_may_be_the_variance_of_a_step(tmp_path):
    """As IF's: a velocity is made of the other half."""
    tiny = describe("if")
    write(tiny, tmp_path, seed=0)
    model = load(tmp_path, tiny)
    asked, x, times = rows(model, tiny)
    some = asked.rows()
    with torch.no_grad():
        velocity = model.predict(model.network, x, times, some, some, guidance=GUIDANCE)
    assert velocity.shape == x.shape
