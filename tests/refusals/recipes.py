"""Recipes that are refused, as text, and what the message must have."""

RECIPES: dict[str, tuple[str, list[str]]] = {
    "broken YAML": ("steps: 3\nmodel: [", ["line"]),
    "tab": ("model:\n\tpath: x", ["line"]),
    "key twice": ("steps: 3\nsteps: 4", ["steps"]),
    "key is not a word": ("1: x", ["words", "line"]),
    "a list": ("[1, 2]", ["options"]),
    "empty": ("", ["null", "options"]),
    "required": (
        "algorithm: diffusion_nft\nrewards: {ocr: {}}\nmodel: {}",
        ["directory", "prompts", "model.path", "data.train_files"],
    ),
    "no algorithm": ("steps: 3", ["diffusion_nft"]),
    "unknown": ("stpes: 3", ["stpes is 3", "steps", "broken.yaml"]),
    "variants of nothing": ("variants: {flow_gpro: {steps: 3}}", ["variants.flow_gpro", "flow_grpo"]),
    "variant is a number": ("variants: {flow_grpo: 3}", ["variants.flow_grpo is 3"]),
    "variant of another": ("variants: {flow_grpo: {algorithm: diffusion_nft}}", ["variants.flow_grpo is"]),
    "variants are a list": ("variants: [flow_grpo]", ["variants is [flow_grpo]"]),
    "label of a reward": ("rewards: {a.b: {name: ocr}}", ["letters", "a.b"]),
    "algorithm is a list": ("algorithm: {name: [flow_grpo]}", ["algorithm is [flow_grpo]", "broken.yaml"]),
    "rewards are a list": ("rewards: [ocr]", ["rewards is [ocr]"]),
    "a list in itself": ("a: &a [1, *a]", ["itself", "broken.yaml"]),
    "a section in itself": ("a: &a {b: {c: *a}}", ["itself"]),
    "brackets": ("[" * 100_000, ["nest"]),
    "braces": ("{a: " * 10_000, ["nest"]),
    "extends nothing": ("extends: nothing.yaml", ["extends is nothing.yaml", "broken.yaml"]),
    "extends a misspelling": ("extends: quickstrat", ["extends is quickstrat", "quickstart"]),
    "extends itself": ("extends: broken.yaml", ["extends is broken.yaml"]),
    "its own task": (
        "task: text-to-image\nalgorithm: grpo\nmodel: {path: a}\nrewards: {exact: {}}",
        ["algorithm is grpo", "image-text-to-text"],
    ),
    **{
        f"hardware {stated}": (f"extends: quickstart\nhardware: {stated}", ["hardware is", "broken.yaml"])
        for stated in (
            "80",
            "{gpus: 1}",
            "{gpus: 0, memory_gb: 80}",
            "{gpus: 12, memory_gb: 80}",
            "{gpus: 1, memory_gb: big}",
            "{gpus: 1, memory_gb: 80, kind: A100}",
            "{gpus: 1, memory_gb: 80, options: [1]}",
        )
    },
    "two mistakes in two files": (
        "extends: quickstart\noptimizer: {lr: 0}\nrollout: {n: many}",
        ["optimizer.lr is 0", "rollout.n is many"],
    ),
}
