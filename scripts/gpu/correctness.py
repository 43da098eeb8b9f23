"""Are the batches on the device what they are on the CPU? All types, ragged rows, layouts, all ways of pinning, and
what a GPU finishes against what the daemon would have written: equal to the bit.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any

import data
from place import PINS, Place, device_loader, path_note
from rows import Measurement, NotMeasured, Outcome, say


def _bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def digests(batch: dict[str, Any]) -> dict[str, str]:
    import forebay
    import torch

    found = {}
    for name, field in batch.items():
        hasher = hashlib.blake2b(digest_size=12)
        if isinstance(field, forebay.Ragged):
            hasher.update(f"ragged {field.values.dtype} {len(field)}".encode())
            offsets, lengths = field.offsets.cpu().tolist(), field.lengths.cpu().tolist()
            values = field.values.cpu()
            for offset, length in zip(offsets, lengths):
                hasher.update(f" {length} ".encode())
                hasher.update(_bytes(values[offset : offset + length]))
        else:
            is_last = field.dim() == 4 and field.is_contiguous(memory_format=torch.channels_last)
            hasher.update(f"{field.dtype} {tuple(field.shape)} {is_last}".encode())
            hasher.update(_bytes(field))
        found[name] = hasher.hexdigest()
    return found


class Differences:
    """Counts what was compared, and keeps the first things that differed."""

    def __init__(self) -> None:
        self.batches = 0
        self.found: list[str] = []

    def compare(self, place: Place, what: str, on_cpu: Any, on_device: Any, **options: Any) -> str:
        """Compares all epochs of two configurations; gives how the batches came to the device."""
        import forebay.torch

        before = len(self.found)
        with forebay.torch.Loader(on_cpu) as host, device_loader(place, on_device, **options) as device:
            for epoch in range(2):
                on_host, on_gpu = iter(host), iter(device)
                for number in count():
                    # Not by `zip`, which keeps the batch before: the rings here are as small as they can be.
                    here, there = next(on_host, None), next(on_gpu, None)
                    if here is None and there is None:
                        break
                    self.batches += 1
                    where = f"{what}, epoch {epoch}, batch {number}"
                    if here is None or there is None:
                        self.found.append(f"{where}: only on the {'device' if here is None else 'CPU'}")
                        continue
                    one, two = digests(here), digests(there)
                    wrong = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
                    if wrong:
                        self.found.append(f"{where}: {', '.join(wrong)}")
                    if any(self._is_elsewhere(field, options.get("device", place.device)) for field in there.values()):
                        self.found.append(f"{where}: a tensor is not on the device")
                    del here, there
                if host.state_dict() != device.state_dict():
                    self.found.append(f"{what}, epoch {epoch}: the states differ")
            note = path_note(device)
        say(f"{what}: {'the same' if len(self.found) == before else 'differs'} ({note})")
        return note

    @staticmethod
    def _is_elsewhere(field: Any, device: str) -> bool:
        import forebay
        import torch

        # A tensor has a method of that name, too.
        values = field.values if isinstance(field, forebay.Ragged) else field
        return bool(values.device != torch.device(device))

    def outcome(self, note: str = "") -> Outcome:
        """All the same, or what is not."""
        if self.batches == 0:
            raise RuntimeError("no batch was compared")
        value = f"{len(self.found)} differences in {self.batches:,} batches"
        shown = "; ".join(self.found[:4]) or note
        return Outcome(value, not self.found, shown, {"batches": self.batches, "differences": self.found[:50]})


def types(place: Place) -> Outcome:
    """Every type that there is, by each way of pinning."""
    config, differences = data.typed_config(place.root), Differences()
    paths = [f"{pin}: {differences.compare(place, f'pin={pin}', config, config, pin=pin)}" for pin in PINS]
    return differences.outcome("; ".join(paths))


def ragged(place: Place) -> Outcome:
    """Rows of different lengths, at a fixed pitch and moved together."""
    differences = Differences()
    for compact in (False, True):
        config = data.ragged_config(place.root, compact)
        for pin in PINS if not compact else ("auto",):
            differences.compare(place, f"compact={compact}, pin={pin}", config, config, pin=pin)
    return differences.outcome()


def layouts(place: Place) -> Outcome:
    """Photographs as NCHW and as channels_last."""
    differences = Differences()
    for layout in ("NCHW", "NHWC"):
        config = data.photo_config(place.root, {"dtype": "uint8", "layout": layout})
        for pin in PINS if layout == "NHWC" else ("auto",):
            differences.compare(place, f"{layout}, pin={pin}", config, config, pin=pin)
    return differences.outcome()


def finished(place: Place) -> Outcome:
    """Images finished by the device against those that the daemon finished."""
    differences = Differences()
    forms: list[dict[str, Any]] = [{"dtype": "uint8", "layout": "NCHW"}]
    for dtype in ("float32", "float16", "bfloat16"):
        for layout in ("NCHW", "NHWC"):
            forms.append({"dtype": dtype, "layout": layout, "mean": data.MEAN, "std": data.STD})
    forms.append({"dtype": "float32", "layout": "NCHW"})
    for form in forms:
        # 63: rows whose bytes end nowhere near a boundary.
        on_cpu = data.photo_config(place.root, {**form, "on": "cpu"}, size=63, rows=31)
        on_gpu = data.photo_config(place.root, {**form, "on": "gpu"}, size=63, rows=31)
        what = f"{form['dtype']} {form['layout']}" + (" normalised" if "mean" in form else "")
        differences.compare(place, what, on_cpu, on_gpu)
    on_cpu, on_gpu = (data.photo_config(place.root, {**forms[1], "on": where}) for where in ("cpu", "gpu"))
    for pin in PINS[1:]:
        differences.compare(place, f"{forms[1]['dtype']} {forms[1]['layout']}, pin={pin}", on_cpu, on_gpu, pin=pin)
    return differences.outcome()


def mixed(place: Place) -> Outcome:
    """Images mixed by the device against those that the daemon mixed; 31 rows, so that one has no partner."""
    differences = Differences()
    mixup, cutmix = {"op": "mixup", "alpha": 0.5}, {"op": "cutmix"}
    operations = {"mixup": mixup, "cutmix": cutmix, "choice": {"op": "choice", "operations": [mixup, cutmix]}}
    for dtype in ("float32", "float16", "bfloat16", "uint8"):
        form: dict[str, Any] = {"dtype": dtype, "layout": "NHWC" if dtype == "float16" else "NCHW"}
        if dtype != "uint8":
            form |= {"mean": data.MEAN, "std": data.STD}
        for name, operation in operations.items():
            on_cpu, on_gpu = (
                data.photo_config(place.root, {**form, "on": where}, size=63, rows=31, operations=[operation])
                for where in ("cpu", "gpu")
            )
            differences.compare(place, f"{name} {dtype} {form['layout']}", on_cpu, on_gpu)
    return differences.outcome()


def states(place: Place) -> Outcome:
    """A state saved in the middle of an epoch on the device goes on there and on the CPU with the same batches."""
    import forebay.torch

    config = data.typed_config(place.root)
    differences = Differences()
    with device_loader(place, config) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        rest = [digests(batch) for batch in batches]
    with device_loader(place, config, state=state) as there, forebay.torch.Loader(config, state=state) as here:
        for name, loader in (("device", there), ("CPU", here)):
            again = [digests(batch) for batch in loader]
            differences.batches += len(again)
            if again != rest:
                differences.found.append(f"resumed on the {name}: {len(again)} batches, not the {len(rest)} that came")
    return differences.outcome()


def several_devices(place: Place) -> Outcome:
    """One loader on each device of this process."""
    import torch

    devices = torch.cuda.device_count()
    if devices < 2:
        raise NotMeasured("one device is visible here")
    differences = Differences()
    config = data.typed_config(place.root)
    for ordinal in range(devices):
        differences.compare(place, f"cuda:{ordinal}", config, config, device=f"cuda:{ordinal}")
    return differences.outcome(f"{devices} devices")


MEASUREMENTS = [
    Measurement("every type, short batches, four ways of pinning", "0", types),
    Measurement("ragged rows", "0", ragged),
    Measurement("NCHW and channels_last", "0", layouts),
    Measurement('on = "gpu" against on = "cpu"', "0", finished),
    Measurement("MixUp and CutMix on the GPU against those on the CPU", "0", mixed),
    Measurement("resumed from a state", "0", states),
    Measurement("several devices in one process", "0", several_devices),
]
