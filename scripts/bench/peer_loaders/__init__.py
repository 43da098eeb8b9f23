"""The loaders that are compared, and how each is set up. A new one is a module here and an entry below.

A module has `batches(work)`, which yields contiguous arrays of a batch each, and where the loader wants the data in a
form of its own also `prepare(work)`. It is imported in that loader's own environment alone.

Each peer runs with the settings that its documentation advises for two cores; `scripts/bench/peers --search NAME` tries
the alternatives given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    # What the table and the documentation say about its settings.
    described: str
    requirements: Sequence[str]
    # Imported once after the installation: a package may install and still lack a library of the system.
    imports: Sequence[str]
    settings: Settings
    # Other settings that `--search` tries, each a change of `settings`.
    alternatives: Sequence[Settings] = ()
    # Another environment whose packages this one sees too: PyTorch alone takes 5 GB.
    layered_on: str = ""
    # What must be there before the packages, and where the rest lacks: words for a failed installation.
    remedy: str = ""
    # Package options that the installation needs.
    pip_options: Sequence[str] = ()
    # Does less than the standard work, so it is shown and never counts as the best peer.
    does_less: str = ""

    @property
    def module(self) -> str:
        """The module here: the name up to a hyphen."""
        return self.name.partition("-")[0]


FOREBAY = Peer(
    name="forebay",
    title="Forebay",
    described="the defaults: work threads on all cores in the idle class, a ring of 8 slots",
    requirements=(),
    imports=("forebay",),
    settings={},
)

SPDL = Peer(
    name="spdl-threads",
    title="SPDL, threads",
    described="FFmpeg decodes, crops, scales and flips in one filter graph; 2 threads beside the consumer",
    requirements=("spdl-core==0.8.0", "spdl-io==0.8.0", "numpy"),
    imports=("spdl.pipeline", "spdl.io.lib", "numpy"),
    settings={"place": "threads", "threads": 2},
    alternatives=({"threads": 3}, {"threads": 4}),
    remedy="it wants FFmpeg's libraries: on Debian apt-get install libavdevice59",
)

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="dali",
            title="DALI",
            described="CPU pipeline, fused random crop, fast DCT, 2 threads, queue of 2 batches",
            requirements=("nvidia-dali-cuda120==2.4.0", "numpy"),
            imports=("nvidia.dali",),
            settings={"threads": 2, "prefetch": 2, "fast_dct": True},
            alternatives=({"threads": 3}, {"threads": 1}, {"fast_dct": False}, {"prefetch": 4}),
        ),
        Peer(
            name="ffcv",
            title="FFCV",
            described="the files' own JPEG bytes in a .beton, its fused crop decoder, 2 threads, 3 batches ahead",
            requirements=("ffcv==1.0.2", "numpy", "pillow"),
            imports=("ffcv.loader",),
            settings={"threads": 2, "prefetch": 3},
            alternatives=({"threads": 3}, {"threads": 1}, {"prefetch": 2}),
            layered_on="pytorch",
            pip_options=("--no-build-isolation",),
            remedy="it is compiled here: on Debian apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev",
        ),
        Peer(
            name="pytorch",
            title="PyTorch DataLoader",
            described="2 workers, prefetch factor 2, torchvision's decode_jpeg and v2 transforms on uint8 tensors",
            requirements=("torch==2.15.0", "torchvision==0.29.2", "numpy"),
            imports=("torch", "torchvision"),
            settings={"workers": 2, "prefetch": 2, "decoder": "tensor"},
            alternatives=({"decoder": "pillow"}, {"workers": 3}, {"workers": 1}, {"prefetch": 4}),
        ),
        Peer(
            name="tfdata",
            title="tf.data",
            described="decode_and_crop_jpeg with fast DCT, antialiased resize, private pool of 2 threads, prefetch 2",
            requirements=("tensorflow-cpu==2.21.0",),
            imports=("tensorflow",),
            settings={"threads": 2, "calls": 2, "prefetch": 2, "fast_dct": True},
            alternatives=({"calls": 0}, {"threads": 3, "calls": 3}, {"fast_dct": False}),
        ),
        Peer(
            name="grain",
            title="Grain",
            described="Pillow, 2 worker processes of one thread each",
            requirements=("grain==0.2.18", "numpy", "pillow"),
            imports=("grain", "PIL"),
            settings={"place": "processes", "workers": 2},
            alternatives=({"place": "threads"}, {"place": "threads", "workers": 4}, {"workers": 3}),
        ),
        Peer(
            name="webdataset",
            title="WebDataset",
            described="the same files in 8 tar shards, Pillow, 2 workers, prefetch factor 2, batched in the workers",
            requirements=("webdataset==1.0.2", "pillow"),
            imports=("webdataset", "torch", "PIL"),
            settings={"workers": 2, "prefetch": 2},
            alternatives=({"workers": 3}, {"prefetch": 4}),
            layered_on="pytorch",
        ),
        Peer(
            name="datago",
            title="datago",
            described="crop to the middle and resize; no random crop and no flip, so less than the standard work",
            requirements=("datago==2026.10.1", "numpy", "pillow"),
            imports=("datago", "numpy", "PIL"),
            settings={"prefetch": 256},
            alternatives=({"prefetch": 32}, {"prefetch": 512}),
            does_less="no random crop, no flip",
        ),
        SPDL,
        replace(
            SPDL,
            name="spdl-subprocess",
            title="SPDL, subprocess",
            described="the same in a process of its own, over its pool of shared-memory segments",
            settings={"place": "subprocess", "threads": 2},
        ),
    )
}
