"""Does a batch stay what it is while it is used? Thousands of steps in which memory is used again at random: streams
change, some batches are dropped while the work that reads them has hardly begun, others are read again much later.

The device itself compares: each image's checksum with the one of the sample that has to be there, known beforehand. So
no step waits for the host, and a batch that is right but in the wrong place counts as wrong.
"""

from __future__ import annotations

import random
from typing import Any

import data
from place import Place, Progress, device_loader, endless, path_note, rust_example
from rows import Measurement, NotMeasured, Outcome

STREAMS = 3
HOLD = 6
# About 50 microseconds on a device of today.
SLEEP_CYCLES = 80_000


class Checker:
    """What the device compares with."""

    def __init__(self, place: Place, config: Any, steps: int) -> None:
        """Reads the order of `steps` batches from a loader on the CPU, and the samples from their file."""
        import forebay
        import numpy
        import torch

        self.steps = steps
        with forebay.Loader(config) as loader:
            batches = endless(loader)
            order = numpy.stack([next(batches)["index"].copy() for _ in range(steps)])
            batches.close()
        self.expected = torch.from_numpy(order.astype(numpy.int64)).to(place.device)
        length = int(numpy.prod(data.SMALL_SHAPE))
        weights = numpy.random.default_rng(21).integers(1, 1 << 31, length, dtype=numpy.int64)
        self.weights = torch.from_numpy(weights).to(place.device)
        samples = torch.from_numpy(numpy.load(data.small_stack(place.root))).to(place.device)
        self.sums = torch.cat([self.checksums(part) for part in samples.split(256)])
        # A row a step: wrong when first read, wrong when read again.
        self.wrong = torch.zeros((steps, 2), dtype=torch.int64, device=place.device)
        torch.cuda.synchronize()

    def checksums(self, images: Any) -> Any:
        """One number an image, of integers: the same in any order of summing."""
        import torch

        return (images.reshape(images.shape[0], -1).to(torch.int64) * self.weights).sum(1)

    def count_wrong(self, batch: dict[str, Any], want: Any) -> Any:
        """How many rows are not what they should be, as a number on the device."""
        return (batch["index"] != want).sum() + (self.checksums(batch["array"]) != self.sums[want]).sum()

    def check(self, batch: dict[str, Any], step: int, column: int) -> None:
        """Queues the comparison on the current stream."""
        self.wrong[step, column].add_(self.count_wrong(batch, self.expected[step]))

    def outcome(self, note: str) -> Outcome:
        """Once everything was done."""
        import torch

        torch.cuda.synchronize()
        wrong = self.wrong.cpu()
        steps = int((wrong.sum(1) != 0).sum())
        figures = {"steps": self.steps, "rows_wrong": int(wrong.sum())}
        if steps:
            first = int((wrong.sum(1) != 0).nonzero()[0])
            note = f"the first at step {first}, rows wrong there {wrong[first].tolist()}; {note}"
        return Outcome(f"{steps} of {self.steps:,} batches wrong", steps == 0, note, figures)


def at_random(place: Place, config: Any, steps: int, **options: Any) -> Outcome:
    """The steps with streams, early drops and late holds."""
    import torch

    checker = Checker(place, config, steps)
    choice = random.Random(22)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
    held: list[tuple[int, Any, dict[str, Any]]] = []
    again = 0
    progress = Progress("steps with random reuse", steps)
    with device_loader(place, config, device_hold=HOLD, **options) as loader:
        batches = endless(loader)
        for step in range(steps):
            taker = choice.choice(streams)
            with torch.cuda.stream(taker):
                batch = next(batches)
            reader = choice.choice(streams)
            _share(batch, taker, reader)
            with torch.cuda.stream(reader):
                torch.cuda._sleep(choice.randrange(SLEEP_CYCLES))
                checker.check(batch, step, 0)
            if choice.random() < 0.5:
                held.append((step, reader, batch))
            # Otherwise early: its readers sleep still. No name may keep it over the next `next`.
            del batch
            while len(held) >= HOLD - 1 or (held and choice.random() < 0.3):
                late_step, last, late = held.pop(choice.randrange(len(held)))
                reader = choice.choice(streams)
                _share(late, last, reader)
                with torch.cuda.stream(reader):
                    checker.check(late, late_step, 1)
                again += 1
                del late
            if step % 256 == 255:
                # Bounds how far the host runs ahead; between, it waits for nothing.
                torch.cuda.synchronize()
            progress.at(step)
        held.clear()
        outcome = checker.outcome(f"{again:,} read again later; {path_note(loader)}")
        batches.close()
    return outcome


def _share(batch: dict[str, Any], before: Any, after: Any) -> None:
    """As PyTorch asks of who uses a tensor on another stream."""
    if before != after:
        after.wait_stream(before)
        for tensor in batch.values():
            tensor.record_stream(after)


def python_reuse(place: Place) -> Outcome:
    """In PyTorch's memory, by the default way of pinning."""
    return at_random(place, data.small_config(place.root), place.many(10_000, 2_000))


def python_reuse_staged(place: Place) -> Outcome:
    """The same through staging buffers, which are few."""
    return at_random(place, data.small_config(place.root), place.many(2_000, 500), pin="stage", ahead=3)


def rust_reuse(place: Place) -> Outcome:
    """The same in the memory that Forebay's own pool gives out."""
    steps = place.many(10_000, 1_000)
    config = data.write_toml(place.root, "small", data.small_config(place.root))
    found = rust_example(place, "reuse", config, steps)
    note = f"{found['compared']:,} reads; path {found['path']}; the first wrong at {found['first_wrong']}"
    return Outcome(f"{found['wrong']:,} of {steps:,} batches wrong", found["wrong"] == 0, note, found)


def in_a_graph(place: Place) -> Outcome:
    """The comparison as a captured graph over constant addresses, replayed for each batch."""
    import torch

    steps = place.many(10_000, 2_000)
    config = data.small_config(place.root)
    checker = Checker(place, config, steps)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    choice = random.Random(23)
    counter = torch.zeros(1, dtype=torch.int64, device=place.device)
    wrong = torch.zeros(steps, dtype=torch.int64, device=place.device)
    progress = Progress("replays of a graph", steps)
    torch.cuda.synchronize()

    with device_loader(place, config, static=True) as loader:
        batches = endless(loader)
        with torch.cuda.stream(streams[0]):
            batch = next(batches)
        addresses = {name: tensor.data_ptr() for name, tensor in batch.items()}

        def work() -> None:
            want = checker.expected.index_select(0, counter)[0]
            wrong.index_add_(0, counter, checker.count_wrong(batch, want).reshape(1))
            counter.add_(1)

        with torch.cuda.stream(streams[0]):
            work()  # so that libraries have made their handles before the capture
        torch.cuda.synchronize()
        counter.zero_()
        wrong.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # The upload's threads call the driver meanwhile, which the default mode forbids to the whole process.
        with torch.cuda.graph(graph, stream=streams[0], capture_error_mode="thread_local"):
            work()
        torch.cuda.synchronize()
        moved = 0
        last = streams[0]
        for step in range(steps):
            stream = choice.choice(streams)
            if stream != last:
                stream.wait_stream(last)
            with torch.cuda.stream(stream):
                if step:
                    batch = next(batches)
                torch.cuda._sleep(choice.randrange(SLEEP_CYCLES))
                graph.replay()
            moved += any(batch[name].data_ptr() != address for name, address in addresses.items())
            last = stream
            if step % 256 == 255:
                torch.cuda.synchronize()
            progress.at(step)
        torch.cuda.synchronize()
        checker.wrong[:, 0] = wrong
        outcome = checker.outcome(f"{moved} with other addresses; {path_note(loader)}")
        if moved or int(counter.cpu()) != steps:
            outcome.met = False
            outcome.note = f"{int(counter.cpu()):,} replays counted; {outcome.note}"
        batches.close()
    return outcome


def capture_in_default_mode(place: Place) -> Outcome:
    """Whether a capture in PyTorch's default mode bears batches coming meanwhile. Nothing is promised."""
    import torch

    config = data.small_config(place.root)
    with device_loader(place, config) as loader:
        batches = endless(loader)
        next(batches)
        numbers = torch.ones(1 << 20, device=place.device)
        captured, refused = 0, ""
        for _ in range(10):
            graph = torch.cuda.CUDAGraph()
            try:
                # A batch that was just taken makes room for the next copy, which begins during the capture.
                next(batches)
                with torch.cuda.graph(graph):
                    product = numbers
                    for _ in range(200):
                        product = product * 1.0
                captured += 1
            except RuntimeError as error:
                refused = str(error).splitlines()[0][:200]
                torch.cuda.synchronize()
        try:
            next(batches)
            after = "batches go on"
        except Exception as error:
            after = f"then the loader failed: {error}"
        batches.close()
    return Outcome(f"{captured} of 10 captures", None, "; ".join(part for part in (after, refused) if part))


def compiled(place: Place) -> Outcome:
    """A compiled function reads the batches."""
    import torch

    steps = 200
    config = data.small_config(place.root)
    checker = Checker(place, config, steps)
    try:
        count_wrong = torch.compile(checker.count_wrong)
        with device_loader(place, config) as first:
            count_wrong(next(iter(first)), checker.expected[0])
    except Exception as error:
        raise NotMeasured(f"torch.compile does not work here: {str(error).strip().splitlines()[0][:200]}") from error
    with device_loader(place, config) as loader:
        batches = endless(loader)
        for step in range(steps):
            checker.wrong[step, 0].add_(count_wrong(next(batches), checker.expected[step]))
        outcome = checker.outcome(path_note(loader))
        batches.close()
    return outcome


MEASUREMENTS = [
    Measurement("steps with random reuse, stream switches, early drops, late holds", "0 wrong", python_reuse),
    Measurement("the same, staged", "0 wrong", python_reuse_staged),
    Measurement("the same in Rust, in Forebay's own memory", "0 wrong", rust_reuse),
    Measurement("a captured CUDA graph with static=True", "0 wrong", in_a_graph),
    Measurement("under torch.compile", "0 wrong", compiled, is_long=True),
    Measurement("a capture in PyTorch's default mode while batches come", "", capture_in_default_mode),
]
