"""Pipelines that draw videos."""

from __future__ import annotations

from functools import partial

from burnish.models.tiny.base import Inputs, Parts, Tiny
from burnish.models.tiny.images import BINS, FTFY, GEMMA2, SIXTEEN, XL
from burnish.models.tiny.networks import CLIP, LATENT

IMAGE: Inputs = {"image": "image"}
VIDEO: Inputs = {"video": "video"}
# latents, a mask of four channels and the latents of the first frame
FIRST_FRAME = {"in_channels": 2 * LATENT + 4}
SEEN = {"image_dim": CLIP, "added_kv_proj_dim": 24}  # a picture that CLIP has read
WAN: Parts = {"transformer_2": None, "scheduler": "UniPCMultistepScheduler"}
WAN_TWO: Parts = {"scheduler": "UniPCMultistepScheduler"}
# of the small Wan 2.2: pictures and text in one network, and a mask of times
WAN_5B: Parts = {**WAN, "vae": SIXTEEN}
clip = partial(Tiny, makes="videos", num_frames=5)

WANS = (
    clip(name="wan2.1", pipeline="WanPipeline", also=("wan",), parts=WAN),
    clip(name="wan2.2", pipeline="WanPipeline", parts=WAN_TWO, values={"boundary_ratio": 0.875}),
    clip(name="wan2.2-5b", pipeline="WanPipeline", parts=WAN_5B, values={"expand_timesteps": True}),
    clip(name="wan2.1-i2v", pipeline="WanImageToVideoPipeline", needs=FTFY, inputs=IMAGE,
         parts={**WAN, "transformer": {**FIRST_FRAME, **SEEN}, "image_encoder": {}, "image_processor": {}}),
    clip(name="wan2.2-i2v", pipeline="WanImageToVideoPipeline", needs=FTFY, inputs=IMAGE,
         values={"boundary_ratio": 0.9}, parts={**WAN_TWO, "transformer": FIRST_FRAME, "transformer_2": FIRST_FRAME}),
    clip(name="wan2.2-5b-i2v", pipeline="WanImageToVideoPipeline", needs=FTFY, inputs=IMAGE, parts=WAN_5B,
         values={"expand_timesteps": True}),
    clip(name="wan-v2v", pipeline="WanVideoToVideoPipeline", needs=FTFY, inputs=VIDEO, num_frames=None,
         parts={"scheduler": "UniPCMultistepScheduler"}),
    clip(name="wan-vace", pipeline="WanVACEPipeline", needs=FTFY, inputs={**VIDEO, "mask": "video mask"}, parts=WAN),
    clip(name="skyreels-v2", pipeline="SkyReelsV2Pipeline", needs=FTFY),
    clip(name="skyreels-v2-i2v", pipeline="SkyReelsV2ImageToVideoPipeline", needs=FTFY, inputs=IMAGE,
         parts={"transformer": {**FIRST_FRAME, **SEEN}, "image_processor": "CLIPImageProcessor"}),
    clip(name="wan-animate", pipeline="WanAnimatePipeline", needs=FTFY, num_frames=None,
         inputs={**IMAGE, "pose_video": "video", "face_video": "video"}, call={"segment_frame_length": 5}),
    clip(name="skyreels-v2-df", pipeline="SkyReelsV2DiffusionForcingPipeline", needs=FTFY),
    clip(name="skyreels-v2-df-i2v", pipeline="SkyReelsV2DiffusionForcingImageToVideoPipeline", needs=FTFY,
         inputs=IMAGE),
    clip(name="lucy-edit", pipeline="LucyEditPipeline", needs=FTFY, inputs=VIDEO,
         parts={**WAN, "transformer": {"in_channels": 2 * LATENT}}),
    clip(name="chronoedit", pipeline="ChronoEditPipeline", needs=FTFY, inputs=IMAGE,
         parts={"transformer": {**FIRST_FRAME, **SEEN}}),
)  # fmt: skip

HUNYUAN = (
    clip(name="hunyuan-video", pipeline="HunyuanVideoPipeline"),
    clip(name="hunyuan-video-i2v", pipeline="HunyuanVideoImageToVideoPipeline", inputs=IMAGE, num_frames=9,
         parts={"transformer": {"in_channels": 2 * LATENT + 1, "guidance_embeds": False,
                                "image_condition_type": "latent_concat"},
                # the pipeline counts on 24 * 24 tokens of a picture
                "image_processor": {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}}),
    clip(name="hunyuan-skyreels-i2v", pipeline="HunyuanSkyreelsImageToVideoPipeline", inputs=IMAGE,
         parts={"transformer": {"in_channels": 2 * LATENT}}),
    clip(name="hunyuan-video1.5", pipeline="HunyuanVideo15Pipeline", also=("hunyuanvideo1.5",)),
    clip(name="hunyuan-video1.5-i2v", pipeline="HunyuanVideo15ImageToVideoPipeline", inputs=IMAGE, height=None,
         width=None, parts={"transformer": {"task_type": "i2v"}}),
)  # fmt: skip

OTHER_VIDEOS = (
    clip(name="ltx", pipeline="LTXPipeline", also=("ltx-video",), num_frames=9),
    clip(name="ltx-i2v", pipeline="LTXImageToVideoPipeline", num_frames=9, inputs=IMAGE),
    clip(name="ltx-condition", pipeline="LTXConditionPipeline", num_frames=9, inputs=IMAGE,
         call={"image_cond_noise_scale": 0.0}, parts={"scheduler": {"shift": 1.0}}),
    clip(name="cogvideox", pipeline="CogVideoXPipeline", num_frames=9),
    clip(name="cogvideox-i2v", pipeline="CogVideoXImageToVideoPipeline", inputs=IMAGE, num_frames=9,
         parts={"transformer": {"in_channels": 2 * LATENT}}),
    clip(name="cogvideox-v2v", pipeline="CogVideoXVideoToVideoPipeline", inputs=VIDEO, num_frames=None),
    clip(name="cogvideox-fun-control", pipeline="CogVideoXFunControlPipeline", num_frames=None,
         inputs={"control_video": "video"},
         parts={"scheduler": "CogVideoXDDIMScheduler", "transformer": {"in_channels": 2 * LATENT}}),
    clip(name="mochi", pipeline="MochiPipeline", num_frames=7, parts={"scheduler": {"invert_sigmas": True}}),
    clip(name="latte", pipeline="LattePipeline", num_frames=None, call={"video_length": 4},
         parts={"scheduler": "DDIMScheduler", "vae": {"shift_factor": None}}),
    clip(name="sana-video", pipeline="SanaVideoPipeline", num_frames=None, call={**BINS, "frames": 5},
         parts={**GEMMA2, "vae": "AutoencoderKLWan"}),
    clip(name="sana-video-i2v", pipeline="SanaImageToVideoPipeline", num_frames=None, call={**BINS, "frames": 5},
         inputs=IMAGE, parts={**GEMMA2, "vae": "AutoencoderKLWan"}),
    clip(name="animatediff", pipeline="AnimateDiffPipeline", num_frames=4,
         parts={"scheduler": "DDIMScheduler", "vae": {"shift_factor": None}}),
    clip(name="animatediff-sdxl", pipeline="AnimateDiffSDXLPipeline", num_frames=4,
         parts={**XL, "scheduler": "DDIMScheduler"}),
    clip(name="svd", pipeline="StableVideoDiffusionPipeline", also=("stable-video-diffusion",), num_frames=4,
         prompt=False, inputs=IMAGE,
         # the pipeline shows pictures of 224 * 224 to CLIP
         parts={"scheduler": {"prediction_type": "v_prediction", "timestep_type": "continuous"},
                "image_encoder": {"image_size": 224, "patch_size": 56}}),
    clip(name="kandinsky5-i2v", pipeline="Kandinsky5I2VPipeline", inputs=IMAGE, num_frames=21,
         parts={"transformer": {"visual_cond": True}}),
    # its network reads where a step ends, too
    clip(name="anyflow", pipeline="AnyFlowPipeline"),
    clip(name="animatediff-v2v", pipeline="AnimateDiffVideoToVideoPipeline", num_frames=None, inputs=VIDEO,
         parts={"scheduler": "DDIMScheduler", "vae": {"shift_factor": None}}),
    clip(name="kandinsky5-t2v", pipeline="Kandinsky5T2VPipeline"),
    clip(name="easyanimate", pipeline="EasyAnimatePipeline",
         parts={"tokenizer": "Qwen2Tokenizer", "text_encoder": "Qwen2_5_VLForConditionalGeneration"}),
)  # fmt: skip
VIDEOS = (*WANS, *HUNYUAN, *OTHER_VIDEOS)
