import pytest

from burnish.config import describe, dump, load, to_dict
from burnish.config.yaml_text import parse, show
from burnish.utils.errors import ConfigError


def test_precedence_is_defaults_then_recipe_then_variant_then_command_line(recipe):
    assert load(recipe).steps == 30
    assert load(recipe, ["algorithm=flow_grpo"]).steps == 40
    assert load(recipe, ["steps=7", "algorithm=flow_grpo"]).steps == 7
    assert load(recipe, ["algorithm=flow_grpo"]).optimizer.lr == 2e-3
    assert load(recipe).optimizer.lr == 3e-4


def test_another_algorithm_does_not_get_the_options_of_the_recipes_own(recipe):
    assert load(recipe).algorithm.beta == 0.5
    chosen = load(recipe, ["algorithm.noise_level=0.3", "algorithm=flow_grpo"]).algorithm
    assert (chosen.name, chosen.clip, chosen.noise_level) == ("flow_grpo", 1e-3, 0.3)


def test_naming_the_recipes_own_algorithm_keeps_its_options(recipe):
    assert load(recipe, ["algorithm=diffusion_nft"]).algorithm.beta == 0.5


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=flow_grpo", "algorithm.clip=1e-2"],
        ["algorithm.clip=0.01", "algorithm=flow_grpo"],
        ["algorithm={name: flow_grpo, clip: 0.01}"],
        ["algorithm.name=flow_grpo", "algorithm.clip=.01", "algorithm=flow_grpo"],
    ],
)
def test_the_order_of_the_command_line_does_not_matter(recipe, overrides):
    chosen = load(recipe, overrides).algorithm
    assert (chosen.name, chosen.clip) == ("flow_grpo", 0.01)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-2E+3", -2000.0),
        (".5", 0.5),
        ("3", 3),
        ("1_000", 1000),
        ("true", True),
        ("null", None),
        ("~", None),
        ("[a,b]", ["a", "b"]),
        ("yes", "yes"),
        ("off", "off"),
        ("12:30", "12:30"),
        ("010", "010"),
        ("2024-01-01", "2024-01-01"),
        ("'3'", "3"),
        (".inf", float("inf")),
        ("{a: 1e3}", {"a": 1e3}),
        ("1e", "1e"),
    ],
)
def test_values_are_read_as_people_mean_them(text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    "value", ["1e-4", "true", "null", "yes", "", "a: b", "x#y", "#", 1e-8, 3, None, False, [1.5, "2"]]
)
def test_what_is_shown_is_read_back(value):
    assert parse(show(value)) == value
    assert "\n" not in show(value)


def test_rewards_are_added_changed_and_removed(recipe):
    config = load(recipe, ["rewards.jpeg_compressibility.weight=0.1", "rewards.border_darkness=null"])
    assert {label: (reward.name, reward.weight) for label, reward in config.rewards.items()} == {
        "ocr": ("ocr", 1.0),
        "jpeg_compressibility": ("jpeg_compressibility", 0.1),
    }


def test_one_kind_of_reward_under_two_labels(recipe):
    config = load(recipe, ["rewards.strict.name=ocr", "rewards.strict.weight=0.5"])
    assert config.rewards["strict"].name == config.rewards["ocr"].name == "ocr"


def test_sections_are_switched_off_on_and_set(recipe):
    assert load(recipe, ["model.lora=null"]).model.lora is None
    assert load(recipe, ["model.lora.rank=8"]).model.lora.rank == 8
    assert load(recipe, ["ema.decay=0.5"]).ema.decay == 0.5
    assert load(recipe, ["ema={}"]).ema.decay == 0.9
    assert load(recipe).ema is None


def test_an_option_of_the_recipe_may_be_switched_off_by_another(recipe):
    from pathlib import Path

    Path(recipe).write_text(Path(recipe).read_text().replace("n: 12", "n: 12, merge_lora: true"))
    assert load(recipe, ["model.lora=null"]).model.lora is None


VARIED = [
    [],
    ["algorithm=flow_grpo", "algorithm.window={kind: random, size: 3}", "model.lora=null"],
    ["ema={}", "rewards.other={name: ocr, weight: -1.5}", "output_dir='1e-4'", "optimizer.eps=1e-30"],
    [
        "trainer.mini_batch_size=24",
        "model.lora.targets=[attn.to_q]",
        "optimizer.betas=[0.5,0.25]",
        "seed=123456789",
    ],
]


@pytest.mark.parametrize("overrides", VARIED)
def test_a_dumped_configuration_loads_as_an_equal_one(recipe, tmp_path, overrides):
    config = load(recipe, overrides)
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump(config))
    again = load(str(saved))
    assert again == config
    assert to_dict(again) == to_dict(config)


def test_what_is_described_says_what_differs_and_explains_the_rest(recipe):
    lines = describe(load(recipe, ["rollout.n=16"]), "small").splitlines()
    n = next(line for line in lines if line.strip().startswith("n: 16"))
    assert "[default 8]" in n
    assert "Samples per prompt" in n
    rank = next(line for line in lines if line.strip().startswith("height:"))
    assert "[default" not in rank
    assert all("#" in line for line in lines if ":" in line and not line.endswith(":") and len(line) < 68)


def test_a_dictionary_is_complete(recipe):
    plain = to_dict(load(recipe))
    assert plain["algorithm"]["name"] == "diffusion_nft"
    assert plain["rewards"]["ocr"] == {"name": "ocr", "weight": 1.0} | plain["rewards"]["ocr"]
    assert plain["rollout"]["batch_size"] == "auto"


def test_a_refused_configuration_is_one_message_with_a_line_for_every_complaint(recipe):
    with pytest.raises(ConfigError) as refused:
        load(recipe, ["steps=0", "rollout.n=x", "lr=1", "algorithm.beta=-1"])
    assert len(refused.value.complaints) == 4
    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize(
    ("algorithm", "reward", "task"),
    [("grpo", "exact", "image-text-to-text"), ("sft", "format", "image-text-to-text"), ("flow_grpo", "ocr", None)],
)
def test_a_recipe_whose_names_belong_to_one_task_needs_not_say_which(tmp_path, algorithm, reward, task):
    (tmp_path / "mine.yaml").write_text(
        f"model: {{path: burnish:quickstart}}\ndata: {{train_files: a, val_files: b}}\nalgorithm: {algorithm}\n"
        f"rewards: {{{reward}: {{}}}}\n"
    )
    assert load(str(tmp_path / "mine.yaml")).task == (task or "text-to-image")


def test_a_recipe_that_says_its_task_is_believed(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "task: text-to-image\nalgorithm: grpo\nmodel: {path: a}\nrewards: {exact: {}}\n"
    )
    with pytest.raises(ConfigError, match="algorithm is grpo, which belongs to task image-text-to-text"):
        load(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ("{exact: {}}", {"exact": 1.0}),  # in the place of format and numeric
        ("{exact: {}, format: {}}", {"exact": 1.0, "format": 0.1}),
        ("{exact: {weight: 0}}", {"exact": 0.0, "format": 0.1, "numeric": 0.9}),  # watched beside them
        ("{format: {weight: 0.5}}", {"format": 0.5, "numeric": 0.9}),
    ],
)
def test_own_rewards_replace_those_of_the_extended_recipe(tmp_path, caplog, rewards, kept):
    own = tmp_path / f"{len(kept)}{len(rewards)}.yaml"
    own.write_text(f"extends: qwen25_vl/grpo\nrewards: {rewards}\n")
    assert {label: reward.weight for label, reward in load(str(own)).rewards.items()} == kept
    assert ("replace" in caplog.text) == ("numeric" not in kept)
    added = load("qwen25_vl/grpo", ["rewards.exact.weight=0.2"]).rewards
    assert set(added) == {"exact", "format", "numeric"}
