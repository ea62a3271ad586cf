"""Reward functions that are called by the names of their parameters, as users and other libraries write them."""

import asyncio


def brightness(images, prompts, scale=1.0):
    return [scale * float(image.mean()) / 255 for image in images]


def paints_over(images, prompts):
    import torch

    torch.set_grad_enabled(False)  # for the whole process, where it scores
    for image in images:
        image[:] = 0
    return [0.0] * len(images)


CALLS: list[dict] = []  # what the last functions got


def as_written(responses, prompts, values, column):
    """What the record says in a column of its values; no number of something else ends it."""
    return [one[column] for one in values]


def by_name(images, references, sources, labels, extra_info, difficulty, scale=1.0):
    CALLS.append(locals())
    return [scale * one for one in difficulty]


def one_at_a_time(image, prompt, ground_truth, bonus=0.5):
    return {"score": float(image.mean()) / 255, "bonus": bonus, "truth": str(ground_truth), "odd": float("nan")}


WAITING: list[str] = []  # answers that calls of ``waiting`` wait with
MOST = [0]  # how many at once


async def waiting(response, reference):
    WAITING.append(reference)
    MOST[0] = max(MOST[0], len(WAITING))
    await asyncio.sleep(0.05)
    WAITING.remove(reference)
    if not reference:
        raise ZeroDivisionError("no reference")
    return float(response.text == reference)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """As verl calls it."""
    right = solution_str == ground_truth
    return {"score": float(right), "acc": right, "pred": solution_str, "source": data_source, "extra": str(extra_info)}


def trl(prompts, completions, solution, **kwargs):
    said = [one[0]["content"] if isinstance(one, list) else one for one in completions]
    CALLS.append({"prompts": prompts, "completions": completions, "kwargs": kwargs})
    return [float(text == right) for text, right in zip(said, solution, strict=True)]


def flow_grpo(images, prompts, metadata):
    assert all(isinstance(prompt, str) for prompt in prompts)
    return [float(len(one)) for one in metadata], {"strict": [1.0] * len(images)}


def easyr1_batch(reward_inputs, format_weight=0.1):
    return [{"overall": (1 - format_weight) * (one["response"] == one["ground_truth"]), "accuracy": 1.0,
             "length": one["response_length"]} for one in reward_inputs]  # fmt: skip


def easyr1_single(reward_input):
    return {"overall": 0.9 * (reward_input["response"] == reward_input["ground_truth"])}


def ranks(images):
    """Places in a group, from 0 for the darkest to 1 for the brightest."""
    order = sorted(range(len(images)), key=lambda row: images[row].mean())
    return [order.index(row) / max(len(images) - 1, 1) for row in range(len(images))]


ranks.compares = "groups"  # type: ignore[attr-defined]


def brighter(images):
    """The chance that the first is the better one."""
    return float(images[0].mean() > images[1].mean())


brighter.compares = "pairs"  # type: ignore[attr-defined]


def norms(latents):
    return [float((latent**2).mean()) for latent in latents]


def token_values(responses, response_ids):
    return [{"tokens": [0.5] * len(ids), "length": len(ids)} for ids in response_ids]


def step_values(response):
    return {"score": 1.5, "steps": [[2, 1.0], [4, 0.5]], "note": "fine"}


class Loaded:
    """Made once, with the reward's arguments."""

    made = 0

    def __init__(self, factor):
        Loaded.made += 1
        self.factor = factor

    def __call__(self, images):
        return [self.factor] * len(images)


def wants_both(image, prompts):
    return 1.0


def wants_responses(responses, prompts):
    return [1.0] * len(responses)


def wants_latents(responses, latents):
    return [1.0] * len(responses)


def lists_in_dicts(images):
    return {"scores": [0.25] * len(images), "sharpness": [2.0] * len(images)}


def odd(response, prompt):
    """Something else than a number, as the prompt says."""
    if prompt.text == "raises":
        raise ZeroDivisionError("not for me")
    return {
        "nan": float("nan"), "inf": float("inf"), "large": 1e300, "text": "good",
        "list": {"score": 1.0, "boxes": [1, 2]}, "none": {"value": 1.0}, "missing": {"score": None, "note": "no face"},
        "tokens": {"tokens": [0.5, 0.5]},
    }.get(prompt.text, 1.0)  # fmt: skip


def one_too_few(responses, prompts):
    return [1.0] * (len(responses) - 1)


def length(response):
    """Of the text, if it is not bad."""
    if "bad" in response.text:
        raise RuntimeError(f"no {response.text}")
    return float(len(response.text))
