"""Schedules, transitions, guidance and windows against the field's reference implementations."""

import pytest
import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

from burnish.diffusion.algorithms.policy_gradient import Window
from burnish.diffusion.steps import guide, static_shift, stratify, to_normal, transition
from tests.conformance import case, cases
from tests.support.schedules import schedule

KINDS = {"sde": "sde", "cps": "cps", "dance_sde": "dance", "Flow-SDE": "sde", "CPS": "cps", "Dance-SDE": "dance"}


def every(file: str, *prefixes: str):
    return pytest.mark.parametrize("case", cases(file, *prefixes), ids=lambda case: case.id)


QWEN = {"use_dynamic_shifting": True, "shift_terminal": 0.02, "time_shift_type": "exponential"}


def times_of(case):
    given, name = case.inputs, case.id.partition("/")[2]
    if name.startswith("sd35"):
        return schedule(given["n"], num_train_timesteps=given["num_train_timesteps"], shift=given["shift"])
    if name.startswith("flow_grpo"):
        return schedule(given["num_inference_steps"], shift=given["shift"])
    if name.startswith("qwen"):
        tokens = (given["height"] // 16) * (given["width"] // 16)
        return schedule(given["n"], once=True, mu=calculate_shift(tokens, 256, 8192, 0.5, 0.9), **QWEN)
    steps = {"wan22": lambda: given["n"], "bagel": lambda: given["n"] - 1, "dance": lambda: given["num_steps"]}
    return schedule(steps[name.split("_")[0]](), once=True, shift=given["shift"])


@every(
    "flow", "schedule/sd35", "schedule/qwen", "schedule/wan22", "schedule/bagel", "schedule/flow_grpo", "schedule/dance"
)
def test_schedule(case):
    case.close(times_of(case), case.expected["sigmas"])
    if "timesteps" in case.expected:
        scale = 1.0 if "bagel" in case.id else 1000.0
        timesteps = torch.as_tensor(case.expected["timesteps"])
        torch.testing.assert_close(times_of(case)[:-1] * scale, timesteps, rtol=1e-5, atol=1e-3)


def step_of(given: dict, kind: str, noise, velocity):
    level = noise.flatten() if isinstance(noise, torch.Tensor) else noise
    known = (given[k] for k in ("sigma_max(=sigmas[1])", "sigma_max", "sigma_index_1") if k in given)
    t_max = next(known, given.get("sigma_next", 0.96))  # read only at t = 1
    sample = torch.as_tensor(given["sample"] if "sample" in given else given["sample_x"])
    t = given.get("sigma", given.get("sigmas_at"))
    t_next = given.get("sigma_next", given.get("sigmas_next"))
    return transition(kind, velocity, sample, t, t_next, noise=level, t_max=float(t_max))


def density_of(kind: str) -> str:
    return "squared_error" if kind == "cps" else "gaussian"


@every("flow", "sde_step")
def test_step_of_verl_omni(case):
    given, expected = case.inputs, case.expected
    kind = KINDS[given.get("sde_type", "sde")]
    velocity = given["model_output"].clone().requires_grad_()
    step = step_of(given, kind, given["noise_level"], velocity)
    logprob = step.logprob(given["prev_sample"], density_of(kind))
    case.close(step.mean, expected["prev_sample_mean"])
    case.close(logprob, expected["log_prob"])
    case.close(step.step.sqrt(), expected["sqrt_dt"])
    # verl-omni leaves the root of the step length out of the std of its sde alone
    case.close(step.std / step.step.sqrt() if kind == "sde" else step.std, expected["std_dev_t"].flatten())
    if "grad_model_output_of_sum_log_prob" in expected:
        (gradient,) = torch.autograd.grad(logprob.sum(), velocity)
        case.close(gradient, expected["grad_model_output_of_sum_log_prob"])


@every("flow", "sde_sample")
def test_sample_of_verl_omni(case):
    given, expected = case.inputs, case.expected
    kind = KINDS[given["sde_type"]]
    step = step_of(given, kind, given["noise_level"], given["model_output"])
    landed = step.sample(given["noise_z"])
    case.close(step.mean, expected["prev_sample_mean"])
    case.close(landed, expected["prev_sample"])
    case.close(step.logprob(landed, density_of(kind)), expected["log_prob"])


@every("flow", "sde_ode_limit")
def test_without_noise_a_step_is_eulers(case):
    step = step_of(case.inputs, KINDS[case.inputs["sde_type"]], 0.0, case.inputs["model_output"])
    case.close(step.mean, case.expected["euler"])
    case.close(step.mean, case.expected["prev_sample_mean"])
    assert (step.std == 0).all()


@every("flow", "sde/flow", "sde/dance")
def test_step_of_the_authors(case):
    given, expected = case.inputs, case.expected
    kind = KINDS[given.get("dynamics_type", given.get("sde_type", "dance_sde" if "dance" in case.id else "sde"))]
    noise = given.get("noise_level", given.get("eta"))
    velocity = torch.tensor(given["model_output_v"])
    step = step_of(given, kind, noise, velocity)
    landed = step.sample(torch.tensor(given["z"])) if "z" in given else torch.tensor(given["next_sample"])
    case.close(step.logprob(landed, density_of(kind)), expected["log_prob"])
    if "next" in expected:
        case.close(landed, expected["next"])
    if "mean" in expected:
        case.close(step.mean, expected["mean"])
    if "std_dev_t" in expected:
        std = torch.as_tensor(expected["std_dev_t"]).flatten()
        case.close(step.std / step.step.sqrt() if kind == "sde" else step.std, std)


def test_log_prob_of_the_dance_step_keeps_its_normaliser():
    """MixGRPO's copy of the step drops it by a line that ends early."""
    c = case("flow", "sde/mixgrpo_dance_logprob_quirk_i8")
    step = step_of(c.inputs, "dance", c.inputs["eta"], torch.tensor(c.inputs["model_output_v"]))
    logprob = step.logprob(torch.tensor(c.inputs["next_sample"]))
    c.close(logprob + step.std.log() + 0.5 * torch.tensor(2 * torch.pi).log(), c.expected["log_prob"])


@every("flow", "cfg/wan", "cfg/ltx_x0")
def test_guidance(case):
    given = case.inputs
    if "x0" in case.id:
        sigma = given["sigma"]
        x0 = guide(given["sample"] - sigma * given["pos"], given["sample"] - sigma * given["neg"], given["scale"])
        case.close((given["sample"] - x0) / sigma, case.expected["out"])
    case.close(guide(given["pos"], given["neg"], given["scale"]), case.expected["out"])


def test_progressive_window_of_mixgrpo():
    """Its windows that stick out of the range shrink and end empty; ours keep their size."""
    c = case("flow", "window/mixgrpo_progressive")
    given, size, stop = c.inputs, c.inputs["group_size"], c.inputs["max_timesteps"]
    chosen = {"every": given["iters_per_group"], "wrap": given["roll_back"]}
    stride = given["prog_overlap_step"] if given["prog_overlap"] else None
    window = Window(kind="progressive", size=size, stop=stop, stride=stride, **chosen)
    whole = [w for w in c.expected["windows"] if len(w) == size]
    assert [window.choose(stop + 1, update=update, key=0) for update in range(len(whole))] == whole


@pytest.mark.parametrize("name", ["window/flow_grpo_per_sample", "window/mixgrpo_random", "window/ltx_noncontiguous"])
def test_random_windows_reach_what_others_reach(name):
    """Other generators draw other windows; ours draws from the same ones."""
    given = case("flow", name).inputs
    size = given.get("size", given.get("group_size"))
    start, stop = given.get("range", (0, given.get("max_timesteps")))
    scattered = "noncontiguous" in name
    window = Window(kind="random", size=size, start=start, stop=stop, scattered=scattered)
    drawn = {tuple(window.choose(stop + 1, update=0, key=key)) for key in range(3000)}
    combinations = torch.combinations(torch.arange(start, stop), size).tolist()
    expected = {tuple(c) for c in combinations if scattered or c[-1] - c[0] == size - 1}
    assert drawn == expected


def test_logit_normal_times():
    c = case("flow", "timesteps/awm_logit_normal_shift3")
    torch.manual_seed(c.inputs["seed"])
    c.close(static_shift(torch.randn(6).sigmoid(), c.inputs["shift"]), c.expected["t"])


def test_a_shift_moves_times_towards_noise():
    """Flow-Factory applies it to 1 - t in two of its samplings, so the same number moves them to clean images."""
    c = case("flow", "timesteps/flow_factory_logit_normal_mean")
    draw = stratify(torch.rand(c.inputs["n"], generator=torch.Generator().manual_seed(0)))
    times = static_shift(to_normal(draw).sigmoid(), c.inputs["shift"])
    assert times.mean() == pytest.approx(1 - c.expected["mean_sigma"], abs=c.rtol)
    # what was meant is symmetric: the reciprocal shift is the other direction
    c.close(static_shift(to_normal(draw).sigmoid(), 1 / c.inputs["shift"]).mean(), c.expected["mean_sigma"])
