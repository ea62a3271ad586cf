"""Parts without weights: schedulers, set as the models that come with them set them, and guidance."""

from __future__ import annotations

from burnish.models.tiny.base import Config

STABLE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}

OTHERS: dict[str, Config] = {
    "FlowMatchEulerDiscreteScheduler": {"shift": 3.0},
    "FlowMapEulerDiscreteScheduler": {"shift": 3.0},
    "EulerDiscreteScheduler": {**STABLE, "timestep_spacing": "leading", "steps_offset": 1},
    "DDIMScheduler": {**STABLE, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
    "PNDMScheduler": {**STABLE, "skip_prk_steps": True, "steps_offset": 1},
    "DPMSolverMultistepScheduler": {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0},
    "CogVideoXDDIMScheduler": {"snr_shift_scale": 1.0, "beta_schedule": "scaled_linear", "timestep_spacing": "trailing",
                               "prediction_type": "v_prediction", "rescale_betas_zero_snr": True},
    "DDPMScheduler": {**STABLE, "clip_sample": False},
    "LCMScheduler": {**STABLE, "original_inference_steps": 50},
    "SCMScheduler": {},
    "CMStochasticIterativeScheduler": {},
    "EDMEulerScheduler": {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5, "sigma_schedule": "karras"},
    "EDMDPMSolverMultistepScheduler": {"sigma_schedule": "exponential", "sigma_min": 0.3, "sigma_max": 500.0,
                                       "prediction_type": "v_prediction", "sigma_data": 1.0, "solver_order": 2},
    "ClassifierFreeGuidance": {"guidance_scale": 3.0},
    "AdaptiveProjectedMixGuidance": {},
    "UniPCMultistepScheduler": {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0},
}  # fmt: skip
# networks that shift their noise levels by the number of tokens
DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}
