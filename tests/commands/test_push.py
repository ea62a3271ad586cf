"""``burnish push``: what is sent to the hub, what the card says, and that others load it without Burnish."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants
from PIL import Image

from tests.support.fake_hub import TOKEN, FakeHub
from tests.support.http_servers import serving
from tests.support.reports import Story, run_folder
from tests.support.tiny_run import TinyRun, burnish


@pytest.fixture(scope="module")
def drawn(files) -> Path:
    """A run of one update of the quickstart's model, with validations."""
    (files / "two.txt").write_text("the number 4\nthe number 7\n")
    run = TinyRun(
        files, "generators", "sd3", "model.path=burnish:quickstart/model", "algorithm=flow_grpo", "steps=1",
        "data.train_files={files}/two.txt",
        "rollout={n: 2, num_inference_steps: 3, max_sequence_length: 4, height: null, width: null}",
        "validation={every: 1, n: 2, reference_guidance: null}", name="drawn",
    )  # fmt: skip
    run.train()
    for file in run.output.glob("validation/*/samples.jsonl"):  # a folder may come from somebody else
        file.write_text(file.read_text().replace('"the number 7"', json.dumps(HOSTILE)))
    return run.output


HOSTILE = "</table><script>alert(1)</script> [x](javascript:alert(2)) `a` | b\n# c\n---\nlicense: mit"


def test_weights_and_a_card_are_pushed_to_a_private_repository(hub, drawn, tmp_path):
    said = burnish("push", drawn, "--to", "me/numbers")
    assert hub.private == {"me/numbers": True}
    assert f"{hub.url}/me/numbers (private)" in said.out
    files = hub.files("me/numbers")
    assert {"README.md", "model_index.json", "transformer/diffusion_pytorch_model.safetensors"} <= set(files)
    assert not [name for name in files if name.startswith((".push", "checkpoints"))]
    assert not list(drawn.glob(".push-*")), "the folder is removed"
    everything = b"".join(files.values()) + said.out.encode()
    assert TOKEN.encode() not in everything
    assert str(tmp_path.parent).encode() not in everything, "a path of this machine was published"
    assert "StableDiffusion3Pipeline" in files["README.md"].decode()


@pytest.mark.thorough
def test_what_was_pushed_is_loaded_by_diffusers_alone(hub, drawn, tmp_path):
    burnish("push", drawn, "--to", "me/numbers")
    code = re.search(r"```python\n(.*?)```", hub.files("me/numbers")["README.md"].decode(), re.DOTALL)[1]
    code = code.replace('"a prompt"', '"the number 4", output_type="latent", height=32, width=32')
    code = code.replace(", height=16, width=32)", ")")
    assert alone(f"{code}\nprint(len(out.images))", hub, tmp_path) == "1"


def alone(code: str, hub: FakeHub, folder: Path) -> str:
    """The last word that a program prints which asks the hub and has no Burnish."""
    code = f"import sys\n{code}\nassert not any(name.startswith('burnish') for name in sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "theirs"),
             "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_a_dry_run_sends_nothing_and_shows_hostile_texts_as_text(hub, drawn, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    said = burnish("push", drawn, "--to", "me/numbers", "--dry-run", "-o", "shown", "--format", "lora").out
    assert hub.asked == []
    assert "Nothing was sent" in said
    assert "pytorch_lora_weights.safetensors" in said
    text = (tmp_path / "shown" / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    known = yaml.safe_load(head)
    assert known["license"] == "apache-2.0"
    assert {"burnish", "flow_grpo", "lora"} <= set(known["tags"])
    assert known["pipeline_tag"] == "text-to-image"
    assert "<script" not in markdown(body)
    assert "newest validation" not in body, "these weights are the ones that were validated last"
    for name in re.findall(r"\]\((card/[\w.-]+)\)", body):
        with Image.open(tmp_path / "shown" / name) as image:
            assert min(image.size) > 100


def markdown(text: str) -> str:
    from markdown_it import MarkdownIt

    rendered: str = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    return rendered


def test_somebody_elses_repository_is_refused_before_anything_is_loaded(hub, tmp_path):
    folder = run_folder(tmp_path / "run", Story(images=False))
    assert "your token may not write there" in burnish("push", folder.path, "--to", "them/numbers", status=2).message
    assert not hub.commits


def test_a_token_is_needed_and_goes_to_no_other_host(hub, tmp_path, monkeypatch):
    run = run_folder(tmp_path / "run", Story(images=False)).path

    def refused() -> str:
        return burnish("push", run, "--to", "me/numbers", status=2).message

    with serving(hub.stranger, "127.0.0.3") as hub.elsewhere:
        assert TOKEN not in refused()
    assert hub.redirected == [("/api/repos/create", "")]
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in refused()
    monkeypatch.setenv("HF_TOKEN", "wrong")
    hub.elsewhere = ""
    assert "token" in refused()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.publish("me/numbers", {"README.md": b"mine"})
    assert "--public" in refused(), "what is public already is not pushed to by mistake"
    assert hub.files("me/numbers") == {"README.md": b"mine"}
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.example")
    assert "unencrypted" in refused()
