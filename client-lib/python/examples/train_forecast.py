"""Forecasting: from 96 rows of a series, the 24 that follow.

    python train_forecast.py windows.toml

docs/how-to/windows.md has the configuration: `x` and `y` are ranges of rows of one array. The model is a linear one of
each channel from its own rows (DLinear without the trend).
"""

import sys

import forebay.torch
import torch

PAST, FUTURE = 96, 24


def main(arguments=None):
    (config,) = arguments or sys.argv[1:]
    losses = []
    with forebay.torch.Loader(config) as loader:
        model = torch.nn.Linear(PAST, FUTURE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in loader:
            forecast = model(batch["x"].transpose(1, 2)).transpose(1, 2)
            loss = torch.nn.functional.mse_loss(forecast, batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
