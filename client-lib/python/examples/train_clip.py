"""Trains a network of torchvision and one that reads letters to tell which text belongs to which picture, as CLIP does.

python train_clip.py train.toml      # preset = "clip", fields `image` and `caption`, batch.size = 256
"""

import sys

import forebay.torch
import torch
import torchvision


def main(config, model="resnet50", width=256, steps=10_000, lr=5e-4):
    pictures = torchvision.models.get_model(model, weights=None, num_classes=width)
    letters, reader = torch.nn.Embedding(256, width), torch.nn.GRU(width, width, batch_first=True)
    scale, losses = torch.nn.Parameter(torch.tensor(1 / 0.07).log()), []
    parameters = [*pictures.parameters(), *letters.parameters(), *reader.parameters(), scale]
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    with forebay.torch.Loader(config) as loader:
        while len(losses) < steps:
            for batch in loader:
                texts = [letters(torch.tensor([*text.encode()])) for text in batch["caption"].strings()]
                texts = torch.nn.utils.rnn.pack_sequence(texts, enforce_sorted=False)
                towers = pictures(batch["image"]), reader(texts)[1][0]
                image, text = (torch.nn.functional.normalize(tower, dim=1) for tower in towers)
                scores, own = scale.exp() * image @ text.T, torch.arange(len(image))
                loss = sum(torch.nn.functional.cross_entropy(each, own) for each in (scores, scores.T)) / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
