"""Operations counted without values, beside PyTorch's own count of what really ran and beside counts by hand."""

from __future__ import annotations

import diffusers
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from burnish.models.flow.base import Drawing
from burnish.models.flow.loading import load_model
from burnish.models.lora import add_adapters
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.training.flop_counter import FlopCounter, Skeleton
from burnish.training.meter import CallMeter
from burnish.types.prompt import Prompt
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.flops import torch_flops

CPU = torch.device("cpu")


class Small(nn.Module):
    """A product, attention and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16, bias=False)
        self.conv = nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        heads = self.outer(self.inner(x)).view(2, 4, 8, 16)
        return F.scaled_dot_product_attention(heads, heads, heads).sum() + self.conv(y).sum()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_weight_has_no_gradient_to_compute(frozen):
    network, given = Small(), (torch.randn(2, 32, 16), torch.randn(2, 4, 6, 6))
    network.inner.requires_grad_(not frozen)
    skeleton = Skeleton(network, CPU)
    with FlopCounter() as operations:
        skeleton.network(*skeleton.fake(given))
    with torch_flops() as forward:
        out = network(*given)
    with torch_flops() as backward:
        out.backward()
    assert operations.cost == (forward.get_total_flops(), backward.get_total_flops())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    own = {"sd3": tiny_pipeline, "flux": tiny_flux}

    def made(name):
        folder = tmp_path_factory.mktemp(name)
        if name in own:
            return own[name](folder), None
        write(describe(name), folder, seed=0)
        return folder, describe(name)

    return made


MORE = ["qwen-image", "z-image", "ltx"]
UNREAD = {"qwen-image": 0.1, "z-image": 0.1}  # of two blocks, the last one makes a text of which nothing is learned


@pytest.mark.parametrize(
    "name", ["sd3", "flux", "wan2.2", *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]
)
@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapters"])
def test_generators(folders, name, adapted):
    """Every family, and pipelines that no family is written for."""
    path, tiny = folders(name)
    size = {} if tiny is None else {"height": tiny.height, "width": tiny.width, "num_frames": tiny.num_frames}
    call = {} if tiny is None else {"call": dict(tiny.call)}
    rollout = RolloutOptions(
        batch_size=96, num_inference_steps=4, guidance_scale=3.0, max_sequence_length=12, **size, **call
    )
    model = load_model(ModelOptions(path=str(path)), rollout)
    if adapted:
        add_adapters(model.network, LoraOptions(rank=3), ["policy"], seed=0, default_targets=model.lora_targets)
    else:
        model.network.requires_grad_(True)
    drawing = Drawing(height=size.get("height", 8), width=size.get("width", 16), steps=4)
    asked = model.condition([Prompt(text=text, negative="grey") for text in ("fox", "two apples", "fox")], drawing)
    model.verify(asked, guidance=3.0)
    x = model.start(asked, drawing, [("row", row) for row in range(3)])
    time, some = model.schedule(asked, drawing)[torch.tensor([0, 0, 2])], asked.rows()
    meter = CallMeter(1.0, CPU)
    meter.watch(model.network)

    def velocity():
        return model.predict(model.network, x, time, some, some, guidance=3.0)

    with meter.counting():
        velocity()  # each shape is run without values, once
        once, meter.counted = meter.counted, 0.0
        with torch_flops() as counter:
            velocity().sum().backward()
    assert meter.works
    assert once == meter.counted == pytest.approx(counter.get_total_flops(), rel=UNREAD.get(name, 0))


def by_hand(layers, tokens, width, hidden):
    """A forward pass of transformer layers with full attention: four products of the width, two of the inner one."""
    return layers * (2 * tokens * (4 * width**2 + hidden) + 4 * tokens**2 * width)


def test_flux_by_hand():
    with torch.device("meta"):
        network = diffusers.FluxTransformer2DModel(num_layers=2, num_single_layers=3, guidance_embeds=True)
    image, text, width = 4096, 512, 3072
    skeleton = Skeleton(network, CPU)
    given = {
        "hidden_states": torch.zeros(1, image, 64), "encoder_hidden_states": torch.zeros(1, text, 4096),
        "pooled_projections": torch.zeros(1, 768), "timestep": torch.ones(1), "guidance": torch.ones(1),
        "img_ids": torch.zeros(image, 3), "txt_ids": torch.zeros(text, 3),
    }  # fmt: skip
    with torch.no_grad(), FlopCounter() as operations:
        skeleton.network(**skeleton.fake(given))
    expected = by_hand(5, image + text, width, 8 * width**2) + 2 * (image * 128 + text * 4096) * width
    assert operations.cost.forward == pytest.approx(expected, rel=0.02)
    assert operations.cost.backward == 0


def test_stable_diffusion_3_by_hand():
    with torch.device("meta"):
        network = diffusers.SD3Transformer2DModel(
            sample_size=128, num_layers=4, num_attention_heads=24, attention_head_dim=64, joint_attention_dim=4096,
            caption_projection_dim=1536, pooled_projection_dim=2048, pos_embed_max_size=192,
        )  # fmt: skip
    image, text, width = 4096, 333, 1536
    skeleton = Skeleton(network.requires_grad_(True), CPU)
    given = {
        "hidden_states": torch.zeros(1, 16, 128, 128), "encoder_hidden_states": torch.zeros(1, text, 4096),
        "pooled_projections": torch.zeros(1, 2048), "timestep": torch.ones(1),
    }  # fmt: skip
    with FlopCounter() as operations:
        skeleton.network(**skeleton.fake(given))
    # the last block makes nothing of the text any more but its keys and values
    unused = 2 * text * (width**2 + 8 * width**2)
    expected = by_hand(4, image + text, width, 8 * width**2) - unused + 2 * text * 4096 * width
    assert operations.cost.forward == pytest.approx(expected, rel=0.02)
    assert operations.cost.backward == pytest.approx(2 * expected, rel=0.02)


def test_qwen_by_hand():
    config = transformers.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=2, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064,
    )  # fmt: skip
    with torch.device("meta"):
        network = transformers.Qwen2ForCausalLM(config)
    tokens, width = 2048, 3584
    skeleton = Skeleton(network, CPU)
    with FlopCounter() as operations:
        skeleton.network(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    keys = 2 * width * (28 * 128 - 4 * 128)  # eight groups share keys and values
    layers = by_hand(2, tokens, width, 3 * width * 18944 - keys)
    assert operations.cost.forward == pytest.approx(layers + 2 * tokens * width * 152064, rel=0.02)
    assert operations.cost.backward == pytest.approx(2 * operations.cost.forward, rel=0.02)
