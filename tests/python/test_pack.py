"""`forebay pack`: the rows of the result, kills and refusals, over the real program."""

import json
import re
import resource
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import forebay
import numpy
import pytest
from support import PROGRAM, config_of, rows_of, run_program, write_toml

LAYOUTS = ["tar", "mds", "parquet"]
SAMPLES = 60


def written_source(folder, last=0):
    """Class folders of files of 20 kB, the last one longer by so many bytes, and a configuration that copies them."""
    random = numpy.random.default_rng(3)
    for sample in range(SAMPLES):
        path = folder / "data" / ["cat", "dog", "owl"][sample % 3] / f"{sample:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        more = last if sample == SAMPLES - 1 else 0
        path.write_bytes(b"\xff\xd8\xff" + random.bytes(20_000 + sample + more))
    data = {"format": "image-folder", "path": str(folder / "data")}
    output = {"image": {"ragged": True, "max_bytes": 30_000}}
    config = config_of(data, order={"epochs": 1, "seed": 5}, output=output)
    return write_toml(folder / "train.toml", config)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return written_source(tmp_path_factory.mktemp("pack"))


def rows(config):
    with forebay.Loader(str(config)) as loader:
        return {index: [bytes(row["image"]), int(row["label"])] for index, row in rows_of(loader).items()}


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def pack(source, output, *arguments):
    return run_program("pack", source, "--to", "tar", "--shard-bytes", "100kB", "--output", output, *arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loader_gives_the_same_rows_from_the_result(source, tmp_path, layout):
    output = tmp_path / "packed"
    done = run_program("pack", source, "--to", layout, "--shard-bytes", "300kB", "--output", output)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{SAMPLES} samples in [45] shards of {layout}, .* verified", done.stdout), done.stdout
    # The folder may be moved.
    moved = output.rename(tmp_path / "moved")
    assert rows(moved / "forebay.toml") == rows(source)


def test_kills_at_any_time_end_in_the_same_bytes(source, tmp_path):
    begun = time.monotonic()
    assert pack(source, tmp_path / "whole").returncode == 0
    took = time.monotonic() - begun
    expected = files(tmp_path / "whole")
    arguments = ["pack", source, "--to", "tar", "--shard-bytes", "100kB", "--output", tmp_path / "packed"]
    for attempt in range(6):
        process = subprocess.Popen(
            [PROGRAM, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(took * (attempt + 2) / 8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if not (tmp_path / "packed").exists():
        done = pack(source, tmp_path / "packed")
        assert done.returncode == 0, done.stderr
    assert files(tmp_path / "packed") == expected
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["packed", "whole"]


def test_full_disk_is_named_and_the_run_goes_on(tmp_path):
    source = written_source(tmp_path, last=500_000)

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    output = tmp_path / "packed"
    # The last shard alone exceeds the limit.
    arguments = ["pack", str(source), "--to", "tar", "--shard-bytes", "100kB", "--output", str(output)]
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, preexec_fn=small_files, restore_signals=False
    )
    assert done.returncode == 1
    assert ".tar.tmp" in done.stderr and "set a smaller --shard-bytes" in done.stderr, done.stderr
    complete = {path.name: path.stat() for path in (tmp_path / "packed.partial").glob("*.tar")}
    assert len(complete) == SAMPLES // 5 - 1
    # Another size of shards is another result.
    done = run_program(*arguments[:4], "--shard-bytes", "200kB", "--output", output)
    assert (done.returncode, output.exists()) == (1, False) and "another --shard-bytes" in done.stderr, done.stderr
    done = run_program(*arguments)
    assert done.returncode == 0 and "by an earlier run" in done.stdout, done.stderr
    for name, before in complete.items():
        kept = (output / name).stat()
        assert (kept.st_ino, kept.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), name
    done = run_program(*arguments)
    assert done.returncode == 1 and "packed exists, and nothing is overwritten" in done.stderr


def test_interrupt_says_how_to_go_on(source, tmp_path):
    output = tmp_path / "packed"
    command = [PROGRAM, "pack", str(source), "--to", "tar", "--shard-bytes", "30kB", "--output", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.glob("packed.partial/*.tar")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    if process.returncode:  # It may have been at its end.
        assert process.returncode == 130 and "the same command goes on" in errors, errors
        done = run_program(*command[1:])
        assert done.returncode == 0 and "by an earlier run" in done.stdout, done.stderr
    assert len(list(output.glob("*.tar"))) == SAMPLES // 2


def test_pictures_are_made_smaller(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "data").mkdir()
    gradient = numpy.indices((90, 120)).sum(0).astype(numpy.uint8)
    exif = image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.fromarray(gradient).convert("RGB").save(tmp_path / "data/a.jpg", exif=exif, quality=95)
    image.fromarray(gradient[:20, :25]).convert("RGB").save(tmp_path / "data/b.png")
    source = write_toml(tmp_path / "train.toml", config_of({"format": "image-folder", "path": str(tmp_path / "data")}))
    done = run_program(
        "pack", source, "--to", "tar", "-o", tmp_path / "packed", "--resize-shorter", 45, "--names", "drop"
    )
    assert done.returncode == 0, done.stderr
    assert "without EXIF data" in done.stderr
    with tarfile.open(tmp_path / "packed/shard-000000.tar") as archive:
        assert archive.getnames() == ["000000000.jpg", "000000001.png"]
        small = image.open(archive.extractfile("000000000.jpg"))
        assert small.size == (45, 60) and not small.getexif()
        expected = numpy.rot90(gradient, -1)[::2, ::2].astype(int)
        assert abs(numpy.array(small.convert("L")).astype(int) - expected).mean() < 3
        assert archive.extractfile("000000001.png").read() == (tmp_path / "data/b.png").read_bytes()


def test_other_readers_give_the_same_bytes(source, tmp_path):
    """pyarrow's, webdataset's and Streaming's own readers, where they are installed."""
    expected = rows(source)
    names = {f"{['cat', 'dog', 'owl'][sample % 3]}/{sample:03}" for sample in range(SAMPLES)}
    parquet = pytest.importorskip("pyarrow.parquet")
    output = tmp_path / "parquet"
    assert run_program("pack", source, "--to", "parquet", "--shard-bytes", "300kB", "-o", output).returncode == 0
    table = parquet.read_table([str(path) for path in sorted(output.glob("*.parquet"))])
    assert [[row["image"], row["label"]] for row in table.to_pylist()] == [expected[index] for index in range(SAMPLES)]
    assert {name.as_py().removesuffix(".jpg") for name in table["__key__"]} == names
    output = tmp_path / "tar"
    assert run_program("pack", source, "--to", "tar", "--shard-bytes", "300kB", "-o", output).returncode == 0
    webdataset = pytest.importorskip("webdataset")
    samples = list(webdataset.WebDataset(sorted(map(str, output.glob("*.tar"))), shardshuffle=False))
    assert [[sample["jpg"], int(sample["cls"])] for sample in samples] == [expected[index] for index in range(SAMPLES)]
    assert {sample["__key__"] for sample in samples} == names
    output = tmp_path / "mds"
    assert run_program("pack", source, "--to", "mds", "--shard-bytes", "300kB", "-o", output).returncode == 0
    formats = pytest.importorskip("streaming.base.format")
    shards = json.loads((output / "index.json").read_text())["shards"]
    readers = [formats.reader_from_json(str(output), None, shard) for shard in shards]
    stored = [reader.get_sample_data(place) for reader in readers for place in range(len(reader))]
    assert len(stored) == SAMPLES and all(expected[place][0] in data for place, data in enumerate(stored))
