"""Rows of a feeder, read by pyarrow as docs/how-to/feeders.md says, and by a loader."""

import json
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
from PIL import Image
from support import PROGRAM

pyarrow = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")


def _pictures(folder: Path) -> Path:
    for number in range(12):
        place = folder / "data" / f"class-{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((60, 50), 80).convert("RGB").save(place / f"{number:02}.png")
    path = folder / "train.toml"
    path.write_text(
        f'preset = "imagenet-train"\ndataset.path = "{folder}/data"\nbatch.size = 4\ncpu.policy = "normal"\n'
    )
    return path


@contextmanager
def _feeder(config: Path) -> Iterator[str]:
    command = [PROGRAM, "feed", str(config), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()
            assert process.wait(60) == 0


def _rows(config: Path, epoch: int) -> dict[int, Any]:
    with forebay.Loader(str(config)) as loader:
        loader.set_epoch(epoch)
        return {int(index): batch["image"][row].copy() for batch in loader for row, index in enumerate(batch["index"])}


def test_pyarrow_reads_the_rows_of_a_loader(tmp_path: Path) -> None:
    config = _pictures(tmp_path)
    expected = {epoch: _rows(config, epoch) for epoch in (0, 3)}
    with _feeder(config) as address, flight.connect(f"grpc://{address}") as client:
        info = client.get_flight_info(flight.FlightDescriptor.for_path("train"))
        assert info.total_records == 12
        assert "image" in info.schema.names
        about = json.loads(info.app_metadata)
        rows = [(0, 0), (11, 3), (5, 0)]
        head = b"FBT1" + bytes.fromhex(about["digest"]) + struct.pack("<II", 1, len(rows))
        ticket = head + b"".join(struct.pack("<QQ", *row) for row in rows)
        found = []
        for chunk in client.do_get(flight.Ticket(ticket)):
            if chunk.data is not None:
                images = chunk.data.column("image")
                shape = images.type.shape
                values = images.storage.flatten().to_numpy().reshape(-1, *shape)
                found += list(zip(chunk.data.column("index").to_pylist(), values, strict=True))
        assert [index for index, _ in found] == [0, 11, 5]
        for (index, image), (_, epoch) in zip(found, rows, strict=True):
            stored = expected[epoch][index]
            assert np.array_equal(np.sort(image.ravel()), np.sort(stored.ravel()))
        for wrong in (ticket[:-1], b"", ticket.replace(b"FBT1", b"FBT2")):
            with pytest.raises(pyarrow.ArrowException, match="ticket"):
                list(client.do_get(flight.Ticket(wrong)))
        with pytest.raises(pyarrow.ArrowException, match="no stream `other`"):
            client.get_flight_info(flight.FlightDescriptor.for_path("other"))
