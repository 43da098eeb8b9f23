"""Fine-tunes a model that makes pictures of texts, as `train_text_to_image.py` of diffusers does.

    accelerate launch train.py train.toml runs --model stable-diffusion-v1-5/stable-diffusion-v1-5
    accelerate launch train.py train.toml runs --model stable-diffusion-v1-5/stable-diffusion-v1-5 --resume

`train.toml` beside this file says where pictures, captions and tokenizer are; a batch has `pixel_values` and
`input_ids`, as from the script's `collate_fn`. Accelerate saves the loader's state with its own: a run that was killed
goes on behind the last checkpoint with the batches and the noise that it would have had. `--steps` counts the steps of
the whole training.
"""

import argparse
import itertools
import shutil
from pathlib import Path

import accelerate
import diffusers
import forebay.accelerate
import forebay.torch
import torch
import transformers
from torch.nn import functional


def loss_of(batch, vae, text_encoder, unet, scheduler):
    """Of the noise that the model finds in the pictures' latents, as in the script."""
    with torch.no_grad():
        latents = vae.encode(batch["pixel_values"]).latent_dist.sample() * vae.config.scaling_factor
        states = text_encoder(batch["input_ids"], return_dict=False)[0]
    noise = torch.randn_like(latents)
    steps = torch.randint(0, scheduler.config.num_train_timesteps, (len(latents),), device=latents.device)
    noisy = scheduler.add_noise(latents, noise, steps)
    is_velocity = scheduler.config.prediction_type == "v_prediction"
    target = scheduler.get_velocity(latents, noise, steps) if is_velocity else noise
    return functional.mse_loss(unet(noisy, steps, states, return_dict=False)[0].float(), target.float())


def save(accelerator, folder, step):
    """A checkpoint has its name only once it is complete."""
    unnamed = folder / "unfinished"
    if accelerator.is_main_process:
        shutil.rmtree(unnamed, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(unnamed)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unnamed.rename(folder / f"step-{step:08}")


def train(accelerator, loader, asked):
    """Trains the UNet; the other two models are not changed."""
    parts = {
        "vae": diffusers.AutoencoderKL,
        "text_encoder": transformers.CLIPTextModel,
        "unet": diffusers.UNet2DConditionModel,
        "scheduler": diffusers.DDPMScheduler,
    }
    vae, text_encoder, unet, scheduler = (kind.from_pretrained(asked.model, subfolder=of) for of, kind in parts.items())
    for part in (vae, text_encoder):
        part.requires_grad_(False).eval().to(accelerator.device)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=asked.lr)
    unet, optimizer = accelerator.prepare(unet.train(), optimizer)
    # In place of the script's `train_dataloader`, which would be an argument of `accelerator.prepare`.
    batches = forebay.accelerate.prepare(accelerator, loader)
    folder, losses = Path(asked.folder), []
    if asked.resume:
        accelerator.load_state(max(folder.glob("step-*")))
    first = batches.steps_taken
    # Without `order.epochs`, one epoch follows another without an end.
    endless = (batch for _ in batches.epochs_left() for batch in batches)
    for step, batch in enumerate(itertools.islice(endless, asked.steps - first), first + 1):
        with accelerator.accumulate(unet):
            loss = loss_of(batch, vae, text_encoder, unet, scheduler)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        accelerator.print(f"step {step}: loss {losses[-1]:.4f}")
        if step % asked.save_every == 0 or step == asked.steps:
            save(accelerator, folder, step)
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="fine-tunes a model that makes pictures of texts")
    parser.add_argument("config", help="a Forebay configuration with the fields pixel_values and input_ids")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument(
        "--model", required=True, help="a Stable Diffusion pipeline, by its name on the hub or its folder"
    )
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    asked = parser.parse_args(arguments)
    accelerator = accelerate.Accelerator()
    accelerate.utils.set_seed(asked.seed, device_specific=True)
    with forebay.torch.Loader(asked.config) as loader:
        return train(accelerator, loader, asked)


if __name__ == "__main__":
    main()
