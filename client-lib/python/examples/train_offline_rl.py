"""Offline reinforcement learning: an action from the states before it, as behaviour cloning does.

    python train_offline_rl.py windows.toml 17 6

The numbers are the sizes of a state and of an action. docs/how-to/windows.md has the configuration: `states` and
`actions` of one episode, padded at its start, and `mask`.
"""

import sys

import forebay.torch
import torch


def main(arguments=None):
    config, *sizes = arguments or sys.argv[1:]
    state, action = map(int, sizes)
    losses = []
    with forebay.torch.Loader(config) as loader:
        cell, head = torch.nn.GRU(state, 32, batch_first=True), torch.nn.Linear(32, action)
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=0.01)
        for batch in loader:
            wrong = (head(cell(batch["states"])[0]) - batch["actions"]).square().mean(-1)
            mask = batch["mask"].float()
            loss = (wrong * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
