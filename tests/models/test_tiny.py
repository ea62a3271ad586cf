"""Tiny models are made by their names, and small."""

from tests.support.tiny_run import burnish

LARGEST = 5 << 20  # bytes of a directory


def test_names_lead_to_one_model(tmp_path):
    names = [line.split()[0].lower() for line in burnish("tiny", "--list").out.splitlines() if len(line.split()) > 3]
    assert len(names) == len(set(names)) > 140
    image = ("StableDiffusionImageVariationPipeline", "sd1.5-variation")
    for given, name in (image, ("Qwen3VLForConditionalGeneration", "qwen3_vl")):
        found = []
        for one in (given, name):
            burnish("tiny", one, tmp_path / one)
            assert sum(path.stat().st_size for path in (tmp_path / one).rglob("*")) < LARGEST
            found.append(sorted(path.relative_to(tmp_path / one) for path in (tmp_path / one).rglob("*")))
        assert found[0] == found[1]
    for given, near in (("wan2.3", "wan2.2"), ("WanVACEPipelin", "WanVACEPipeline"), ("gemma33", "gemma3")):
        assert near in burnish("tiny", given, tmp_path / "none", status=2).message
