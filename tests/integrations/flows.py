"""What is done with pipelines of diffusers, on any device.

A flow makes its pipelines anew from fixed seeds, places them, and returns pictures as an array.
Random numbers come from generators on the CPU, as diffusers wants them for the device.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from examples import small_pipelines as small

Place = Callable[[Any], Any]
Picture = NDArray[Any]
# What every text-to-image call of SDXL is given.
CALL: dict[str, Any] = {
    "prompt": "a dog",
    "num_inference_steps": 3,
    "height": 32,
    "width": 32,
    "guidance_scale": 5.0,
}
PIXART: dict[str, Any] = {
    **CALL,
    "use_resolution_binning": False,
    "max_sequence_length": small.TOKENS,
    "clean_caption": False,
}
KLEIN: dict[str, Any] = {
    **CALL,
    "text_encoder_out_layers": (1, 2, 3),
    "max_sequence_length": small.TOKENS,
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "EulerDiscreteScheduler": {},
    "EulerAncestralDiscreteScheduler": {},
    "DPMSolverMultistepScheduler": {"use_karras_sigmas": True},
    "DPMSolverSinglestepScheduler": {},
    "DDIMScheduler": {},
    "DDPMScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "LMSDiscreteScheduler": {},
    "HeunDiscreteScheduler": {},
    "KDPM2DiscreteScheduler": {},
    "LCMScheduler": {},
    "UniPCMultistepScheduler": {},
    "DEISMultistepScheduler": {},
    "TCDScheduler": {},
}


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photo(size: int = 32) -> Image.Image:
    pixels = np.random.default_rng(5).integers(0, 255, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def hole() -> Image.Image:
    mask = np.zeros((32, 32), np.uint8)
    mask[8:24, 8:24] = 255
    return Image.fromarray(mask)


def images(pipe: Any, **call: Any) -> Picture:
    result: Picture = pipe(**{"generator": seeded(), "output_type": "np", **call}).images
    return result


def text_to_image(place: Place) -> Picture:
    return images(place(small.sdxl()), **CALL)


def turbo(place: Place) -> Picture:
    return images(place(small.sdxl()), **{**CALL, "num_inference_steps": 1, "guidance_scale": 0.0})


def pixart(place: Place) -> Picture:
    return images(place(small.pixart()), **PIXART)


def pixart_sigma(place: Place) -> Picture:
    return images(place(small.pixart(sigma=True)), **PIXART)


def klein(place: Place) -> Picture:
    return images(place(small.flux2_klein()), **KLEIN)


def klein_edits(place: Place) -> Picture:
    return images(place(small.flux2_klein()), **KLEIN, image=[photo(64)])


def scheduled(name: str, place: Place) -> Picture:
    pipe = small.sdxl()
    kind = getattr(diffusers, name)
    pipe.scheduler = kind.from_config(pipe.scheduler.config, **SCHEDULERS[name])
    return images(place(pipe), **CALL)


def image_to_image(place: Place) -> Picture:
    pipe = small.quiet(diffusers.StableDiffusionXLImg2ImgPipeline.from_pipe(small.sdxl()))
    call = {"prompt": "a dog", "strength": 0.6, "num_inference_steps": 4}
    return images(place(pipe), image=photo(), **call)


def inpainting(place: Place) -> Picture:
    pipe = small.quiet(diffusers.StableDiffusionXLInpaintPipeline.from_pipe(small.sdxl()))
    return images(place(pipe), image=photo(), mask_image=hole(), strength=0.8, **CALL)


def refined(place: Place) -> Picture:
    base = place(small.sdxl())
    latents = base(**CALL, denoising_end=0.6, generator=seeded(), output_type="latent").images
    refiner = place(small.sdxl_refiner(base))
    return images(
        refiner, prompt="a dog", image=latents, num_inference_steps=3, denoising_start=0.6
    )


def tiled(place: Place) -> Picture:
    pipe = small.sdxl()
    pipe.vae.enable_tiling()
    pipe.vae.tile_sample_min_size, pipe.vae.tile_latent_min_size = 32, 16
    return images(place(pipe), **{**CALL, "height": 80, "width": 80, "num_inference_steps": 1})


def sliced(place: Place) -> Picture:
    pipe = small.sdxl()
    pipe.vae.enable_slicing()
    call = {**CALL, "prompt": ["a dog", "a cat"], "num_inference_steps": 2}
    return images(place(pipe), **call, generator=[seeded(1), seeded(2)])


def called_back(place: Place) -> Picture:
    def change(pipe: Any, step: int, timestep: Any, state: dict[str, Any]) -> dict[str, Any]:
        del timestep
        pipe._interrupt = step == 1
        return {"latents": 1.01 * state["latents"]}

    return images(place(small.sdxl()), **CALL, callback_on_step_end=change)


def from_embeddings(place: Place) -> Picture:
    absent: dict[str, Any] = dict.fromkeys(("text_encoder", "tokenizer"))
    absent |= dict.fromkeys(("text_encoder_2", "tokenizer_2"))
    pipe = place(small.sdxl(**absent))
    source = seeded()

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source).to(pipe.device)

    return images(
        pipe,
        prompt_embeds=normal(1, 7, 64),
        negative_prompt_embeds=normal(1, 7, 64),
        pooled_prompt_embeds=normal(1, 32),
        negative_pooled_prompt_embeds=normal(1, 32),
        latents=normal(1, 4, 16, 16),
        **{**CALL, "prompt": None},
    )


def adapter_folder() -> str:
    """A directory with weights of a low-rank adapter for the UNet, in diffusers' format."""
    from peft import LoraConfig  # noqa: PLC0415
    from peft.utils import get_peft_model_state_dict  # noqa: PLC0415

    unet = small.sdxl().unet
    torch.manual_seed(9)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    unet.add_adapter(
        LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights="gaussian")
    )
    for name, weight in unet.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    folder = tempfile.mkdtemp()
    diffusers.StableDiffusionXLPipeline.save_lora_weights(
        folder, unet_lora_layers=get_peft_model_state_dict(unet)
    )
    return folder


def adapted(place: Place) -> Picture:
    """Load, scale, fuse, unfuse and unload an adapter of a pipeline that is already in use."""
    folder = adapter_folder()
    pipe = place(small.sdxl())
    call = {**CALL, "num_inference_steps": 1, "guidance_scale": 0.0}
    made = [images(pipe, **call)]
    pipe.load_lora_weights(folder, adapter_name="style")
    made += [images(pipe, **call), images(pipe, **call, cross_attention_kwargs={"scale": 0.3})]
    pipe.fuse_lora()
    made += [images(pipe, **call)]
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    made += [images(pipe, **call)]
    assert np.abs(made[1] - made[0]).max() > 1e-3, "the adapter changes nothing"
    return np.stack(made)


# What is tested always, and what `make test-all` tests too.
FLOWS: dict[str, Callable[[Place], Picture]] = {
    f.__name__: f
    for f in (text_to_image, turbo, pixart, klein, image_to_image, inpainting, refined, tiled)
}
MORE: dict[str, Callable[[Place], Picture]] = {
    f.__name__: f
    for f in (pixart_sigma, klein_edits, sliced, called_back, from_embeddings, adapted)
}
