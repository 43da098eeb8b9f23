"""Trains a small policy on recordings of a robot: from pictures and joints to the next actions, by imitation.

    python train.py train.toml run.pt --stats recordings/meta/stats.json --steps 1000
    python train.py train.toml run.pt --stats recordings/meta/stats.json --steps 1000 --resume

`train.toml` beside this file says where the LeRobotDataset is, which cameras are read, and how many actions a sample
has. Actions behind an episode's end do not count. The checkpoint holds the model, with the means and deviations of
joints and actions, the optimizer and the loader's state: a run that was killed goes on behind the last checkpoint with
the batches that it would have had. `--steps` counts the steps of the whole training.
"""

import argparse
import itertools
import json
import os

import forebay.torch
import torch

CAMERAS = "observation.images."  # how the names of their fields begin


class Policy(torch.nn.Module):
    """Two convolutions over the picture of each camera and two layers, in place of your policy.

    `stats` is the dataset's `meta/stats.json`. A chunk has so many instants.
    """

    def __init__(self, stats, cameras, instants, width=32):
        super().__init__()
        for name in ("observation.state", "action"):
            for of in ("mean", "std"):
                self.register_buffer(f"{name.rpartition('.')[2]}_{of}", torch.tensor(stats[name][of]).float())
        self.eyes = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 5, 2),
            torch.nn.GELU(),
            torch.nn.Conv2d(width, width, 5, 2),
            torch.nn.GELU(),
            torch.nn.AdaptiveAvgPool2d(2),
            torch.nn.Flatten(),
        )
        self.head = torch.nn.Sequential(
            torch.nn.Linear(cameras * 4 * width + len(self.state_mean), 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, instants * len(self.action_mean)),
        )

    def forward(self, pictures, state):
        """Normalized actions, [rows, instants, values]; `act` gives those of the robot."""
        seen = [self.eyes(picture[:, -1]) for picture in pictures]  # [rows, instants, 3, height, width]
        joints = (state - self.state_mean) / (self.state_std + 1e-8)
        return self.head(torch.cat([*seen, joints], 1)).unflatten(1, (-1, len(self.action_mean)))

    def act(self, pictures, state):
        return self(pictures, state) * self.action_std + self.action_mean


def loss_of(model, batch):
    """The mean difference of the actions that the episodes have."""
    pictures = [batch[name] for name in sorted(batch) if name.startswith(CAMERAS) and not name.endswith("_is_pad")]
    made = model(pictures, batch["observation.state"])
    wanted = (batch["action"] - model.action_mean) / (model.action_std + 1e-8)
    counts = ~batch["action_is_pad"]
    return (made - wanted).abs().mean(2)[counts].mean()


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a small policy of a robot")
    parser.add_argument("config", help="a Forebay configuration of a LeRobotDataset")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--stats", required=True, help="the dataset's meta/stats.json")
    parser.add_argument("--cameras", type=int, default=2, help="that the configuration reads")
    parser.add_argument("--instants", type=int, default=8, help="of a chunk of actions")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    asked = parser.parse_args(arguments)
    torch.manual_seed(1)
    with open(asked.stats) as file:
        stats = json.load(file)
    model = Policy(stats, asked.cameras, asked.instants)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    step, losses = 0, []
    with forebay.torch.Loader(asked.config) as loader:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        if asked.resume:
            saved = torch.load(asked.checkpoint)
            step = saved["step"]
            for name, part in parts.items():
                part.load_state_dict(saved[name])
        # Without `order.epochs`, one epoch follows another without an end.
        batches = (batch for _ in loader.epochs_left() for batch in loader)
        for batch in itertools.islice(batches, asked.steps - step):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            print(f"step {step}: loss {losses[-1]:.4f}")
            if step % asked.save_every == 0 or step == asked.steps:
                # Under another name first: a kill meanwhile leaves the checkpoint before.
                kept = f"{asked.checkpoint}.new"
                torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, kept)
                os.replace(kept, asked.checkpoint)
    return losses


if __name__ == "__main__":
    main()
