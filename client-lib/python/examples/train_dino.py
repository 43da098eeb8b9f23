"""Trains a network of torchvision without labels, as DINO does, on the views that Forebay cuts out of each picture.

python train_dino.py train.toml      # preset = "dino", dataset.path = "pictures", batch.size = 64
"""

import sys

import forebay.torch
import torch
import torchvision


def main(config, model="resnet50", outputs=4096, steps=10_000, lr=5e-4):
    losses, centre = [], torch.zeros(outputs)
    student = torchvision.models.get_model(model, weights=None, num_classes=outputs)
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.996)
    teacher = torch.optim.swa_utils.AveragedModel(student, multi_avg_fn=mean)
    optimizer = torch.optim.AdamW(student.parameters(), lr=lr)
    with forebay.torch.Loader(config) as loader:
        while len(losses) < steps:
            for batch in loader:
                large, small = ([batch[n] / 255 for n in batch if n.startswith(kind)] for kind in ("global", "local"))
                told = torch.nn.functional.normalize(teacher(torch.cat(large)).detach())
                targets = ((told - centre) / 0.04).softmax(1).chunk(len(large))
                guesses = [torch.nn.functional.normalize(student(torch.cat(views))) for views in (large, small)]
                guesses = [*guesses[0].chunk(len(large)), *guesses[1].chunk(len(small))]
                pairs = [(guess / 0.1, to) for t, to in enumerate(targets) for g, guess in enumerate(guesses) if g != t]
                loss = sum(torch.nn.functional.cross_entropy(*pair) for pair in pairs) / len(pairs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                teacher.update_parameters(student)
                centre = centre.lerp(told.mean(0), 0.1)
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
