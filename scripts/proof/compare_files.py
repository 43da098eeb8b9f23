#!/usr/bin/env python3
"""Reads foreign files with Forebay and with the reader that others use, and compares what both give.

scripts/prove --only corpora runs it, with the Python environment that has forebay, numpy, Pillow, soundfile and
pyarrow; files whose reader is absent are counted and not tried. `compare_files.py FOLDER`: each folder in FOLDER is a
corpus. A line of JSON goes to stdout: of each corpus and kind of files what was equal, different, refused and why.

Pictures are compared in RGB, L and RGBA, upright, sounds as float32 with all channels, arrays whole, tables column by
column, each of them to the bit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import multiprocessing
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

# Pictures with more pixels are not compared: a bomb takes the reference reader's memory, not only ours.
MOST_PIXELS = 40_000_000
MOST_BYTES = 64 << 20
# Files of one job, and the pixels of those that are read together.
FILES_TOGETHER = 120
PIXELS_TOGETHER = 200_000
# For one loader; a hang is a failure of its own.
SECONDS = 60
EQUAL, DIFFERENT, REFUSED, BOTH_REFUSE, BEYOND, NOT_COMPARED, CRASHED = (
    "equal",
    "different",
    "refused",
    "both refuse",
    "read beyond the reference",
    "not compared",
    "crashed",
)
PICTURES = "jpg jpeg jpe jfif png apng webp tif tiff bmp dib gif"
KINDS = {
    **dict.fromkeys((f".{suffix}" for suffix in PICTURES.split()), "pictures"),
    **dict.fromkeys((".wav", ".flac"), "sounds"),
    ".npy": "arrays",
    ".parquet": "Parquet columns",
    **dict.fromkeys((".arrow", ".arrow_file", ".stream"), "Arrow columns"),
}
CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}

Verdict = tuple[str, str]


class Refused(Exception):
    """A reader refuses a file; the text says why."""


class Crashed(Exception):
    """The daemon died, or nothing came for a while."""


def module(name: str) -> Any:
    """A module that the linters' environment lacks."""
    return importlib.import_module(name)


def samples(config: dict[str, Any], names: list[str]) -> dict[int, list[Any]]:
    """What Forebay gives for these fields, by the samples' numbers."""
    forebay, numpy = module("forebay"), module("numpy")
    config = {
        "batch": {"size": 64, "last": "short"},
        "order": {"epochs": 1, "shuffle": False},
        "limits": {"pixels": MOST_PIXELS},
        "stage": [{"name": "read", "operations": []}],
        **config,
    }
    made: dict[int, list[Any]] = {}
    try:
        with forebay.Loader(config, timeout=SECONDS) as loader:
            for batch in loader:
                values = [batch[name] for name in names]
                for place, number in enumerate(batch["index"].tolist()):
                    made[number] = [numpy.array(value[place]) for value in values]
    except (forebay.DaemonLost, forebay.Timeout) as error:
        raise Crashed(str(error)) from error
    except forebay.Error as error:
        # A sample is named in the third daemon that it ends.
        if re.search(r"panicked|ended the daemon|ends the daemon", str(error)):
            raise Crashed(str(error)) from error
        raise Refused(str(error)) from error
    return made


def rows(config: dict[str, Any], field: str) -> list[Any]:
    """What Forebay gives for a field, sample by sample."""
    return [values[0] for _, values in sorted(samples(config, [field]).items())]


def reason(text: str) -> str:
    """A message without what differs from file to file, so that equal reasons are counted together."""
    text = text.strip().splitlines()[0] if text.strip() else "no reason"
    text = re.sub(r"^bad sample \d+ in epoch \d+: \S+ |^the dict: \S+ ", "", text)
    text = text.partition("; repair or remove the file")[0]
    text = re.sub(r"^`audio`: |^.*?the first sample, cannot be used: ", "", text)
    text = re.sub(r"(?:begins with)( [0-9a-f]{2})+", "begins with other bytes", text)
    text = re.sub(r"[^ ]*/[^ ]*/[^ ]*", "FILE", text)
    text = re.sub(r"\b0x[0-9a-f]+|\d[\d,.]*", "#", text)
    return text[:160]


def compared(reference: Callable[[], Any], ours: Callable[[Any], bool]) -> Verdict:
    """One comparison: `ours` reads with Forebay, and says whether it gives what the reference gave, or None."""
    expected: Any = None
    unread: str | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = reference()
    except Exception as error:
        unread = type(error).__name__
    try:
        is_equal = ours(expected)
    except Refused as error:
        return (REFUSED if unread is None else BOTH_REFUSE), reason(str(error))
    except Crashed as error:
        return CRASHED, reason(str(error))
    if unread is not None:
        return BEYOND, unread
    return (EQUAL if is_equal else DIFFERENT), ""


def manifest(folder: Path, files: list[Path]) -> str:
    """A dataset of these files."""
    place = folder / "files.jsonl"
    place.write_text("".join(json.dumps({"path": str(file)}) + "\n" for file in files))
    return str(place)


def reference_picture(file: Path, mode: str) -> Any:
    """Pillow's pixels, upright."""
    images, numpy = module("PIL.Image"), module("numpy")
    images.MAX_IMAGE_PIXELS = MOST_PIXELS // 2
    with images.open(io.BytesIO(file.read_bytes())) as image:
        image.seek(0)
        # A TIFF turns itself when it is loaded.
        image.load()
        return numpy.asarray(module("PIL.ImageOps").exif_transpose(image).convert(mode))


def our_pictures(folder: Path, files: list[Path], shape: tuple[int, ...], channels: int) -> dict[int, Any]:
    """Forebay's pixels of pictures of one size, by their numbers; of several those that are read."""
    config = {
        "dataset": {
            "format": "manifest",
            "path": manifest(folder, files),
            "fields": {"image": {"from": "path", "as": "image"}},
        },
        "stage": [
            {
                "name": "decode",
                "operations": [
                    {"op": "decode-image", "channels": channels, "orientation": True},
                    {"op": "center-crop", "size": list(shape[:2])},
                ],
            }
        ],
        "output": {"image": {"layout": "NHWC"}},
        "batch": {"size": min(len(files), 16), "last": "short"},
        "errors": {"on_bad_sample": "fail" if len(files) == 1 else "substitute"},
    }
    return {number: made for number, (made,) in samples(config, ["image"]).items()}


def picture(folder: Path, file: Path) -> Verdict:
    """The first mode that is not equal stands for the file."""
    numpy = module("numpy")

    def ours(expected: Any, channels: int) -> bool:
        made = our_pictures(folder, [file], (1, 1) if expected is None else expected.shape, channels)[0]
        return expected is not None and bool(numpy.array_equal(made.reshape(expected.shape), expected))

    verdict = (EQUAL, "")
    for mode, channels in CHANNELS.items():
        verdict = compared(
            functools.partial(reference_picture, file, mode),
            functools.partial(ours, channels=channels),
        )
        if verdict[0] != EQUAL:
            break
    return verdict


def equal_together(folder: Path, files: list[Path]) -> set[Path]:
    """Of pictures of one size those that are equal in every mode, read by one loader for each mode."""
    numpy = module("numpy")
    equal = set(files)
    for mode, channels in CHANNELS.items():
        expected = [reference_picture(file, mode) for file in files]
        try:
            made = our_pictures(folder, files, expected[0].shape, channels)
        except (Refused, Crashed):
            return set()
        for number, file in enumerate(files):
            if number not in made or not numpy.array_equal(
                made[number].reshape(expected[number].shape), expected[number]
            ):
                equal.discard(file)
    return equal


def pictures(folder: Path, files: list[Path]) -> Iterator[tuple[Path, Verdict]]:
    """Those of one size together, which is quicker, and what is not equal then one by one."""
    sizes: dict[tuple[int, ...], list[Path]] = {}
    for file in files:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = [reference_picture(file, mode).shape[:2] for mode in CHANNELS]
            if shapes[0][0] * shapes[0][1] <= PIXELS_TOGETHER:
                sizes.setdefault(shapes[0], []).append(file)
    equal: set[Path] = set()
    for alike in sizes.values():
        if len(alike) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                equal |= equal_together(folder, alike)
    for file in files:
        yield file, ((EQUAL, "") if file in equal else picture(folder, file))


def sound(folder: Path, file: Path) -> Iterator[Verdict]:
    """All channels."""
    soundfile, numpy = module("soundfile"), module("numpy")

    def ours(expected: Any) -> bool:
        channels = 1 if expected is None else expected.shape[1]
        field = {"from": "path", "as": "audio"} | ({} if expected is None else {"channels": channels})
        config = {
            "dataset": {"format": "manifest", "path": manifest(folder, [file]), "fields": {"audio": field}},
            "output": {"audio": {"ragged": True, "max_bytes": 32 << 20 if expected is None else expected.nbytes + 64}},
            "batch": {"size": 1, "last": "short"},
        }
        (made,) = rows(config, "audio")
        if expected is None:
            return False
        return made.size == expected.size and bool(
            numpy.array_equal(made.reshape(expected.shape), expected, equal_nan=True)
        )

    yield compared(lambda: soundfile.read(file, dtype="float32", always_2d=True)[0], ours)


def array(folder: Path, file: Path) -> Iterator[Verdict]:
    """The array with its type."""
    numpy = module("numpy")

    def ours(expected: Any) -> bool:
        fields = {"array": {"from": "path", "as": "array"}}
        config = {"dataset": {"format": "manifest", "path": manifest(folder, [file]), "fields": fields}}
        (made,) = rows(config, "array")
        if expected is None:
            return False
        if made.shape != expected.shape or made.dtype != expected.dtype.newbyteorder("="):
            return False
        return bool(numpy.array_equal(made, expected, equal_nan=made.dtype.kind == "f"))

    yield compared(lambda: numpy.load(file, allow_pickle=False), ours)


def stored_type(kind: Any) -> Any:
    """The type of the values that a dictionary or an extension type stands for."""
    arrow = module("pyarrow")
    while True:
        if isinstance(kind, arrow.BaseExtensionType):
            kind = kind.storage_type
        elif arrow.types.is_dictionary(kind):
            kind = kind.value_type
        else:
            return kind


def expected_values(column: Any) -> list[Any]:
    """A column's values that are not null, as Forebay gives them; raises if there is no such form."""
    arrow, numpy = module("pyarrow"), module("numpy")
    types = arrow.types
    column = column.drop_null()
    kind = stored_type(column.type)
    if kind != column.type:
        column = column.cast(kind)
    if types.is_temporal(kind) and not types.is_interval(kind):
        width = 32 if types.is_date32(kind) or types.is_time32(kind) else 64
        column = column.cast(arrow.int32()) if width == 32 else column.cast(arrow.int64())
        return [numpy.asarray(value.as_py()) for value in column]
    if types.is_string(kind) or types.is_large_string(kind):
        return [numpy.frombuffer(value.as_py().encode(), numpy.uint8) for value in column]
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return [numpy.frombuffer(value.as_py(), numpy.uint8) for value in column]
    return [numpy.asarray(value.as_py()) for value in column]


def same_values(made: list[Any], expected: list[Any]) -> bool:
    """Values; types are those that the documentation has for the column."""
    numpy = module("numpy")
    if len(made) != len(expected):
        return False
    for ours, other in zip(made, expected):
        if ours.size == 0 and other.size == 0:
            continue
        if ours.shape != other.shape or not numpy.array_equal(ours, other, equal_nan=ours.dtype.kind == "f"):
            return False
    return True


def longest(expected: list[Any]) -> dict[str, Any]:
    """The output for rows of different lengths, with room for these."""
    return {"ragged": True, "max_bytes": max((value.nbytes for value in expected), default=0) + (64 << 10)}


def is_ragged(kind: Any) -> bool:
    """Whether a column's values may differ in length."""
    types, kind = module("pyarrow").types, stored_type(kind)
    return not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_temporal(kind))


def columns(folder: Path, file: Path, kind: str, read: Callable[[], Any]) -> Iterator[Verdict]:
    """A verdict for each column; of a file that the reference refuses, one for the file."""
    link = folder / f"table.{kind}"
    link.unlink(missing_ok=True)
    link.symlink_to(file)

    def ours(name: str, ragged: bool, expected: list[Any]) -> list[Any]:
        fields = {"value": {"from": name, "missing": "skip"}}
        output = {"output": {"value": longest(expected)}} if ragged else {}
        config = {"dataset": {"format": kind, "path": str(link), "fields": fields}, **output}
        return rows({**config, "batch": {"size": 16, "last": "short"}}, "value")

    def equal_columns(table: Any) -> set[str]:
        """Those without null values that are equal when they are read together."""
        chosen: dict[str, list[Any]] = {}
        for name in table.column_names:
            if table.column(name).null_count == 0:
                with contextlib.suppress(Exception):
                    chosen[name] = expected_values(table.column(name))
        fields = {f"value{place}": {"from": name} for place, name in enumerate(chosen)}
        output = {
            f"value{place}": longest(expected)
            for place, (name, expected) in enumerate(chosen.items())
            if is_ragged(table.schema.field(name).type)
        }
        config = {"dataset": {"format": kind, "path": str(link), "fields": fields}, "output": output}
        config["batch"] = {"size": 16, "last": "short"}
        try:
            made = [values for _, values in sorted(samples(config, list(fields)).items())]
        except (Refused, Crashed):
            return set()
        return {
            name
            for place, (name, expected) in enumerate(chosen.items())
            if same_values([values[place] for values in made], expected)
        }

    def whole(expected: Any) -> bool:
        rows({"dataset": {"format": kind, "path": str(link)}, "batch": {"size": 1}}, "index")
        return False

    try:
        table = read()
    except Exception:
        yield compared(read, whole)
        return
    equal = equal_columns(table) if len(set(table.column_names)) == len(table.column_names) else set()
    for place, field in enumerate(table.schema):
        if field.name in equal:
            yield EQUAL, ""
            continue
        if table.column_names.count(field.name) > 1:
            yield NOT_COMPARED, "a name that two columns have"
            continue
        column = table.column(place)

        def one(expected: Any, name: str = field.name, ragged: bool = is_ragged(field.type)) -> bool:
            return same_values(ours(name, ragged, expected or []), expected or [])

        yield compared(functools.partial(expected_values, column), one)


def parquet(folder: Path, file: Path) -> Iterator[Verdict]:
    yield from columns(folder, file, "parquet", lambda: module("pyarrow.parquet").read_table(file))


def arrow(folder: Path, file: Path) -> Iterator[Verdict]:
    def read() -> Any:
        ipc = module("pyarrow").ipc
        data = file.read_bytes()
        reader = ipc.open_file(data) if data.startswith(b"ARROW1") else ipc.open_stream(data)
        return reader.read_all()

    yield from columns(folder, file, "arrow", read)


def each(
    one: Callable[[Path, Path], Iterator[Verdict]],
) -> Callable[[Path, list[Path]], Iterator[tuple[Path, Verdict]]]:
    """Files one by one."""

    def all_of(folder: Path, files: list[Path]) -> Iterator[tuple[Path, Verdict]]:
        for file in files:
            for verdict in one(folder, file):
                yield file, verdict

    return all_of


READERS: dict[str, tuple[str, Callable[[Path, list[Path]], Iterator[tuple[Path, Verdict]]]]] = {
    "pictures": ("PIL", pictures),
    "sounds": ("soundfile", each(sound)),
    "arrays": ("numpy", each(array)),
    "Parquet columns": ("pyarrow", each(parquet)),
    "Arrow columns": ("pyarrow", each(arrow)),
}


def compare(kind: str, files: list[str]) -> list[tuple[str, Verdict]]:
    """All verdicts of files. Runs in a process of its own, which a reference reader may end."""
    with tempfile.TemporaryDirectory(prefix="forebay-corpora-") as folder:
        made = READERS[kind][1](Path(folder), [Path(file) for file in files])
        return [(str(file), verdict) for file, verdict in made]


def has_reader(kind: str) -> bool:
    try:
        module(READERS[kind][0])
    except ImportError:
        return False
    return True


def jobs_of(corpus: Path, absent: set[str], skipped: Counter[str]) -> list[tuple[str, list[str]]]:
    """A corpus's files by kind, in jobs."""
    kinds: dict[str, list[str]] = {}
    for file in sorted(file for file in corpus.rglob("*") if file.is_file()):
        kind = KINDS.get(file.suffix.lower())
        if kind is None or kind in absent or file.stat().st_size > MOST_BYTES:
            skipped["of other formats" if kind is None else kind if kind in absent else "too large"] += 1
        else:
            kinds.setdefault(kind, []).append(str(file))
    return [
        (kind, files[start : start + (FILES_TOGETHER if kind == "pictures" else 1)])
        for kind, files in kinds.items()
        for start in range(0, len(files), FILES_TOGETHER if kind == "pictures" else 1)
    ]


def answer(connection: Connection, kind: str, files: list[str]) -> None:
    """Sends the verdicts: the whole of a job's process."""
    connection.send(compare(kind, files))


def in_a_process(job: tuple[str, list[str]]) -> list[tuple[str, Verdict]]:
    """The verdicts of a job, in a process that a reference reader may crash; then its files one by one."""
    kind, files = job
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs, kind, files))
    process.start()
    theirs.close()
    try:
        # A crash closes the other end; a loader ends by its own time-out.
        if ours.poll(SECONDS * 10):
            return list(ours.recv())
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
    if len(files) > 1:
        return [verdict for file in files for verdict in in_a_process((kind, [file]))]
    return [(files[0], (NOT_COMPARED, "the reference reader crashes or hangs"))]


def main() -> int:
    """Compares all files of a folder."""
    root = Path(sys.argv[1]).resolve()
    corpora = sorted(entry for entry in root.iterdir() if entry.is_dir()) or [root]
    absent = {kind for kind in READERS if not has_reader(kind)}
    found: dict[str, Any] = {}
    skipped: Counter[str] = Counter()
    jobs = [(corpus, job) for corpus in corpora for job in jobs_of(corpus, absent, skipped)]
    with ThreadPool(2) as pool:
        for (corpus, (kind, _)), verdicts in zip(jobs, pool.imap(in_a_process, [job for _, job in jobs])):
            of = found.setdefault(corpus.name, {}).setdefault(kind, {"counts": {}, "reasons": {}, "files": {}})
            for file, (verdict, why) in verdicts:
                of["counts"][verdict] = of["counts"].get(verdict, 0) + 1
                if why:
                    key = f"{verdict}: {why}"
                    of["reasons"][key] = of["reasons"].get(key, 0) + 1
                if verdict in (DIFFERENT, CRASHED, REFUSED):
                    of["files"].setdefault(verdict, []).append(str(Path(file).relative_to(corpus)))
    print(json.dumps({"corpora": found, "skipped": dict(skipped), "absent": sorted(absent)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
