"""Pipelines of any class draw, learn and are saved as diffusers alone has them, or are refused with what they do."""

from __future__ import annotations

import shutil
import threading

import diffusers
import pytest
import torch

from burnish.utils.errors import UserError
from tests.support import unseen
from tests.support.generators import Generator, close, drawn_by, folder_of
from tests.support.model_runs import changed, refused, run_of

THOROUGH = pytest.mark.thorough
# rows of one prompt's size, lists of sequences, two experts, a first frame, and a picture that is joined to the state
KINDS = ["z-image", "wan2.2", "flux-kontext", *(pytest.param(one, marks=THOROUGH) for one in ("qwen-image", "ltx-i2v"))]
FAMILIES = [("sd3", "auto", 3.0), ("sd3", "pipeline", 1.0), ("flux-dev", "auto", 1.0), ("flux", "pipeline", 3.0),
            ("sdxl", "auto", 3.0)]  # fmt: skip
TEXTS = ("a red fox", "two apples on the table")
FOUR = [[0], [1], [2], [3]]


def rows(generator):
    """Four rows of two prompts, and their states and times."""
    asked = generator.asked(*TEXTS, *TEXTS)
    return asked, generator.start(asked), generator.times(asked)[torch.tensor([0, 0, 2, 3])]


@pytest.mark.parametrize(
    ("name", "family", "guidance"),
    [*FAMILIES, *(pytest.param(*one, 4.0 - guidance, marks=THOROUGH) for *one, guidance in FAMILIES)],
)
def test_diffusers_alone_draws_the_same(name, family, guidance):
    ours = Generator(name, family=family, guidance=guidance, steps=5)
    asked = ours.asked(*TEXTS)
    x = ours.start(asked)
    drawn = ours.pictures(asked, ours.draw(asked, x))
    assert (drawn[0] - drawn[1]).abs().max() > 0.01
    torch.testing.assert_close(drawn, ours.alone(TEXTS, x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("zeros", [True, False])
def test_without_a_negative_prompt_stable_diffusion_xl_is_drawn_as_diffusers_alone_draws_it(zeros, tmp_path):
    """It takes zeros then, unless its model_index.json says otherwise: not what an empty text is encoded to."""
    path = shutil.copytree(folder_of("sdxl"), tmp_path / "sdxl")
    changed(path / "model_index.json", force_zeros_for_empty_prompt=zeros)
    ours = Generator(path, guidance=5.0, negative="", rollout={"height": 32, "width": 32})
    asked = ours.asked("a red fox")
    x = ours.start(asked)
    torch.testing.assert_close(
        ours.pictures(asked, ours.draw(asked, x)), ours.alone(["a red fox"], x), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *(("sd3", what) for what in ("lora", "dora", "merged", "folded")), ("flux", "lora"), ("flux", "merged"),
        ("pixart-sigma", "folded"), ("pixart-sigma", "merged"),  # a class without adapters of its own
        *(pytest.param("flux", what, marks=THOROUGH) for what in ("dora", "folded")),
    ],
)  # fmt: skip
def test_what_is_exported_draws_the_same(name, what, tmp_path):
    ours = Generator(name, lora={"dora": what == "dora", "rslora": what == "dora"})
    asked = ours.asked(*TEXTS)
    x = ours.start(asked)
    drawn, plain = ours.draw(asked, x), Generator(name)
    assert (plain.draw(asked, x) - drawn).abs().max() > 0.05, "the adapter changes nothing"
    if what == "merged":
        ours.model.save_pipeline(tmp_path, ours.merged())
        if name == "pixart-sigma":  # whose scheduler takes no steps of Euler's
            again = Generator(tmp_path, rollout={"height": 32, "width": 32, "call": dict(ours.rollout.call)})
            pictures = again.pictures(asked, again.draw(asked, x))
        else:
            pictures = ours.alone(TEXTS, x, path=tmp_path)
    elif what == "folded" or name == "pixart-sigma":
        ours.model.save_lora(tmp_path, "policy")
        plain.model.fold_lora(tmp_path)
        assert not any("lora" in key for key, _ in plain.network.named_parameters())
        pictures = plain.pictures(asked, plain.draw(asked, x))
    else:
        ours.model.save_lora(tmp_path, "policy")
        pictures = ours.alone(TEXTS, x, adapter=tmp_path)
    torch.testing.assert_close(ours.pictures(asked, drawn), pictures, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_gradients_depend_neither_on_micro_batches_nor_on_what_shares_a_forward(name):
    ours = Generator(name, family="pipeline", guidance=3.0)
    ours.network.requires_grad_(True)
    given = rows(ours)
    alone = ours.gradients(*given, FOUR)
    close(ours.gradients(*given, [[0, 1, 2, 3]]), alone)
    close(ours.gradients(*given, [[3, 1], [0, 2]]), alone)


@pytest.mark.parametrize("family", ["auto", "pipeline"])
@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_gradients_of_pictures_reach_the_states(name, family):
    ours = Generator(name, family=family)
    asked = ours.asked(*TEXTS)
    x = ours.start(asked).requires_grad_()
    pixels = ours.pictures(asked, x)
    assert 0 <= float(pixels.min()) <= float(pixels.max()) <= 1
    weights = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((pixels * weights).sum(), x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        up, down = (ours.pictures(asked, x + s * 1e-3 * direction) for s in (1, -1))
    numeric = float(((up - down) * weights).sum()) / 2e-3
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=0.05)


@pytest.mark.parametrize("family", ["auto", "pipeline"])
def test_pictures_become_states_and_pictures_again(family):
    ours = Generator("sd3", family=family)
    asked = ours.asked(*TEXTS)
    pixels = ours.model.decode(ours.start(asked), asked.rows())
    drawn = ours.pictures(asked, ours.start(asked)).detach()
    for picture, tensor in zip(pixels, drawn, strict=True):
        assert (torch.from_numpy(picture) == (tensor * 255).round().byte().permute(1, 2, 0)).all()
    states = ours.model.encode_pictures(pixels, asked.rows())
    assert states.shape == ours.start(asked).shape
    alone = ours.model.encode_pictures(pixels[1:], asked.select([1]).rows())
    torch.testing.assert_close(alone, states[1:], rtol=1e-4, atol=1e-4)
    vae = ours.model.pipeline.vae
    scaled = torch.stack([torch.from_numpy(one) for one in pixels]).permute(0, 3, 1, 2) / 255 * 2 - 1
    with torch.no_grad():
        mean = vae.encode(scaled).latent_dist.mean
    torch.testing.assert_close(states, (mean - vae.config.shift_factor) * vae.config.scaling_factor)
    with pytest.raises(UserError):
        ours.model.encode_pictures([pixels[0], pixels[1][:8]], asked.rows())


def test_large_pictures_are_decoded_in_tiles_where_that_is_asked_for(files):
    plain, tiled = Generator("sd3"), Generator("sd3", vae_tiling=True)
    assert (plain.model.pipeline.vae.use_tiling, tiled.model.pipeline.vae.use_tiling) == (False, True)
    asked = plain.asked(*TEXTS)
    x = plain.start(asked)
    assert torch.equal(plain.pictures(asked, x), tiled.pictures(asked, x)), "one tile is the picture"
    (files / "letters.txt").write_text("a\nb\n")
    bare = ["model.path=burnish:quickstart/model", "data.train_files={files}/letters.txt"]
    assert "model.vae_tiling" in refused(files, "sd3", *bare, "model.vae_tiling=true")


def test_what_a_pipeline_draws_is_known_by_its_class():
    kinds = {
        "image": ("QwenImage", "FluxKontext", "StableDiffusionXL"), "sound": ("StableAudio", "AceStep", "AudioLDM2"),
        "clip": ("Wan", "WanVACE", "WanVideoToVideo", "LTX", "SanaVideo", "SanaImageToVideo", "Latte"),
    }  # fmt: skip
    assert all(drawn_by(f"{name}Pipeline") == kind for kind, names in kinds.items() for name in names)
    ours = Generator("longcat-audio")
    asked = ours.asked("rain")
    (sound,) = ours.model.decode(ours.start(asked), asked.rows())
    assert sound.rate == 400, "of the network that makes it"


@pytest.mark.parametrize("guidance", [3.0, 1.0])
@pytest.mark.parametrize("name", ["z-image", "sd3"])
def test_what_was_checked_without_guidance_is_checked_again_with_it(name, guidance):
    ours = Generator(name, family="pipeline")
    asked, x, times = rows(ours)
    ours.verify(asked, guidance)
    with torch.no_grad():
        together = ours.velocity(asked, x, times, guidance=guidance)
        alone = torch.cat([ours.velocity(asked, x, times, one, guidance=guidance) for one in FOUR])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_rows_share_a_forward_only_at_the_sizes_at_which_they_may():
    """A network whose rows change one another at one size has each alone there, and all together elsewhere."""
    ours, shared = Generator("sd3", family="pipeline"), []

    def changed(module, args, kwargs, output):
        states = kwargs["hidden_states"]
        shared.append(len(states))
        wrong = len(states) > 1 and states.shape[-1] == small
        return tuple(one * 1.5 for one in output) if wrong else output

    def forwards(size):
        ours.rollout.height = ours.rollout.width = size
        ours.drawing = type(ours.drawing)(height=size, width=size, steps=4)
        asked = ours.asked(*TEXTS)
        x, times = ours.start(asked), ours.times(asked)[[1, 1]]
        shared.clear()
        with torch.no_grad():
            ours.velocity(asked, x, times)
        return list(shared)

    small = ours.start(ours.asked("a", check=False)).shape[-1]
    ours.network.register_forward_hook(changed, with_kwargs=True)
    assert [forwards(size) for size in (32, 64, 32)] == [[1, 1], [2], [1, 1]]


def test_nothing_is_left_of_a_run():
    ours = Generator("flux-kontext", guidance=3.0)
    pipeline = ours.model.pipeline
    before = {key: id(value) for key, value in vars(pipeline).items()}
    asked, x, times = rows(ours)
    threads = threading.active_count()  # libraries start their own at first
    ours.model.decode(x, asked.rows())

    def fail(*_):
        raise KeyError("a fault")

    hook = ours.network.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="a fault"):
        ours.velocity(asked, x, times)
    hook.remove()
    assert {key: id(value) for key, value in vars(pipeline).items()} == before
    assert type(pipeline) is diffusers.FluxKontextPipeline
    assert type(pipeline.scheduler).__module__.startswith("diffusers.")
    assert "step" not in vars(pipeline.scheduler)
    modules = [
        module for part in pipeline.components.values() if isinstance(part, torch.nn.Module)
        for module in part.modules()
    ]  # fmt: skip
    assert not any({"forward", "encode", "decode"} & set(vars(module)) for module in modules)
    assert threading.active_count() == threads
    assert torch.is_grad_enabled()


def test_half_of_a_prediction_may_be_the_variance_of_a_step():
    ours = Generator("if", guidance=3.0)
    asked, x, times = rows(ours)
    with torch.no_grad():
        assert ours.velocity(asked, x, times).shape == x.shape


def test_gradients_of_an_expert_that_is_not_trained_are_not_computed():
    ours, graded = Generator("wan2.2", networks=["transformer"]), []
    asked = ours.asked("a cube", check=False)
    ours.model.pipeline.transformer_2.register_forward_pre_hook(lambda *_: graded.append(torch.is_grad_enabled()))
    with torch.no_grad():
        ours.verify(asked)
        ours.model.noised(asked)
    assert graded
    assert not any(graded)


def test_parts_that_rest_in_other_memory_take_turns():
    """Text encoders leave when prompts are encoded; a second expert never lies beside the others."""
    from burnish.models.flow.put_away import PutAway

    device = torch.device("cpu")
    pipeline = (ours := Generator("wan2.2", networks=["transformer"])).model.pipeline
    text, vae, expert = away = [
        PutAway(part, device) for part in (pipeline.text_encoder, pipeline.vae, pipeline.transformer_2)
    ]
    for part in away:
        part.instead_of = [other for other in away if other.part in ours.model.never_beside(part.part)]
    here = []
    for brought in (text, vae, expert, vae):
        brought.bring()
        here.append([not part.is_away for part in away])
    assert here == [[True, False, False], [True, True, False], [False, False, True], [False, True, False]]
    reading = Generator("flux")
    parts, came = reading.model.pipeline.components, []
    reading.model.away = encoders = [PutAway(parts[name], device) for name in ("text_encoder", "text_encoder_2")]
    for part in encoders:
        part.part.register_forward_hook(lambda *_, part=part: came.append(not part.is_away))
    reading.asked("a cube", check=False)
    assert came == [True, True]
    assert all(part.is_away for part in encoders)


def test_a_guider_with_a_memory_is_named_with_what_turns_it_off(files, tmp_path):
    path = shutil.copytree(folder_of("hunyuan-image"), tmp_path / "model")
    options = [f"model.path={path}", "rollout.num_inference_steps=12", "rollout.height=32", "rollout.width=32"]
    told = refused(files, "sd3", *options)
    assert "AdaptiveProjectedMixGuidance" in told
    assert "guider/guider_config.json" in told
    for file in path.glob("*guider/guider_config.json"):
        changed(file, enabled=False)
    Generator(path, steps=12, rollout={"height": 32, "width": 32}).asked("a cat")


# Classes that nobody has seen


@pytest.fixture
def unseen_run(files, monkeypatch):
    """A run of a pipeline as if a new version of diffusers had it."""
    unseen.add_to_diffusers(monkeypatch)

    def run(kind, *options, painter=unseen.UnseenPainter):
        name = f"{kind.__name__}{painter.__name__}"
        if not (files / name).exists():
            unseen.write_unseen(files / name, kind, painter)
        usual = ["rollout.height=null", "rollout.width=null", "rollout.guidance_scale=2", "validation.every=0"]
        return run_of(files, name, *usual, *options, name=f"run-{name}")

    return run


def test_a_class_that_nobody_has_seen_is_trained(unseen_run):
    run = unseen_run(unseen.UnseenPipeline, "rollout.call={side: 4}", "optimizer.lr=2e-2", "rollout.n=8")
    run.train("steps=8", "trainer.epochs=1", "trainer.mini_batch_size=null")
    rewards = [line["critic/rewards/mean"] for line in run.metrics if "critic/rewards/mean" in line]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 5  # of 255
    assert max(line.get("rollout_corr/logprob_abs_diff", 0.0) for line in run.metrics) < 1e-5


@pytest.mark.parametrize(
    ("kind", "painter"),
    [
        (unseen.NamingPipeline, unseen.UnseenPainter), (unseen.SignedPipeline, unseen.UnseenPainter),
        (unseen.NestingPipeline, unseen.NestingPainter),
    ],
)  # fmt: skip
def test_arguments_by_name_another_range_and_lists_of_lists_draw_the_same(kind, painter, unseen_run):
    usual, other = unseen_run(unseen.UnseenPipeline), unseen_run(kind, painter=painter)
    usual.train("steps=1")
    other.train("steps=1")
    for ours, theirs in zip(other.metrics, usual.metrics, strict=True):
        ours, theirs = ({key: value for key, value in one.items() if value is not None} for one in (ours, theirs))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


REFUSED = {  # what is named beside the class
    unseen.TwicePipeline: ["decrease"],
    unseen.TwoStatesPipeline: ["schedulers"],
    unseen.OwnSchedulerPipeline: ["its own scheduler"],
    unseen.LayersPipeline: ["2 pictures"],
    unseen.PriorPipeline: ["image_embeddings"],
    unseen.RowsPipeline: ["2 rows"],
    unseen.MomentumPipeline: ["momentum"],
    unseen.CombinedPipeline: ["UnseenPipeline"],
    unseen.BrokenPipeline: ["KeyError", "'offset'", "unseen.py"],
    unseen.OddPainter: ["painter", "SimpleNamespace"],
    unseen.LatePipeline: ["6", "8"],
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_pipelines_that_step_or_return_otherwise_are_refused(kind, unseen_run):
    odd = kind is unseen.OddPainter
    run = unseen_run(unseen.UnseenPipeline, painter=kind) if odd else unseen_run(kind)
    told = run.train(*["rollout.num_inference_steps=8"] * (kind is unseen.LatePipeline), status=2).message
    assert [word for word in [*REFUSED[kind], "UnseenPipeline" if odd else kind.__name__] if word not in told] == []


@pytest.mark.parametrize(("kind", "steps"), [(unseen.LatePipeline, 5), (unseen.EndsPipeline, 6)])
def test_what_shows_in_no_step_is_taken_and_a_step_may_depend_on_where_it_ends(kind, steps, unseen_run):
    unseen_run(kind).train("steps=1", f"rollout.num_inference_steps={steps}")


def test_a_scheduler_that_takes_predictions_for_something_else_is_refused(unseen_run):
    unseen_run(unseen.UnseenPipeline)
    ours = Generator(unseen_run(unseen.UnseenPipeline).output.parent / "UnseenPipelineUnseenPainter")
    asked = ours.asked("a cat", check=False)
    ours.model.pipeline.scheduler = unseen.OddScheduler(shift=3.0)
    odd = type(ours.model)(ours.model.pipeline, ours.options, ours.rollout, compute=torch.float32)
    with pytest.raises(UserError, match="OddScheduler"):
        odd.verify(asked, guidance=1.0)


def test_what_is_kept_of_a_picture_may_be_noise_before_the_first_step(unseen_run):
    run = unseen_run(unseen.KeepingPipeline)
    run.train("steps=1")
    ours = Generator(run.output.parent / "KeepingPipelineUnseenPainter", guidance=2.0)
    mask = ours.model.noised(ours.asked("a cat"))
    assert mask.view(2, 32, 3).all(-1).all(-1).tolist() == [False, True]


def test_numbers_of_classes_are_prompts_and_a_sample_may_be_held_twice(unseen_run):
    run = unseen_run(unseen.NumbersPipeline)
    assert "'a cat'" in run.train(status=2).message
    ours = Generator(run.output.parent / "NumbersPipelineUnseenPainter", guidance=3.0)
    asked = ours.asked("7", "12")
    x = ours.start(asked)
    drawn = ours.pictures(asked, ours.draw(asked, x))
    theirs = ours.alone(["7", "12"], x)
    assert (theirs[0] - theirs[1]).abs().max() > 0.01
    torch.testing.assert_close(drawn, theirs, rtol=0, atol=1e-5)
