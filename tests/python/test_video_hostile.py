"""Damaged and hostile files of videos, through the whole program: tables, decoders' processes, rows.

``FOREBAY_TEST_VIDEO_MUTATIONS`` says how many of MP4 and how many of Matroska; a short run of it is a test.
"""

import collections
import ctypes.util
import os
import random
import re
import shutil
import struct

import forebay
import numpy
import pytest
from support import ROOT, config_of, processes

VIDEOS = ROOT / "daemon/crates/video/fixtures"
CONTAINERS = {"mp4": (".mp4", ".mov"), "matroska": (".mkv", ".webm")}
COUNT = int(os.environ.get("FOREBAY_TEST_VIDEO_MUTATIONS", "60"))
# Boxes and elements with others in them.
MP4_PARENTS = {b"moov", b"trak", b"edts", b"mdia", b"minf", b"dinf", b"stbl", b"mvex", b"moof", b"traf"}
EBML_PARENTS = {0x18538067, 0x1654AE6B, 0xAE, 0xE0, 0x1F43B675, 0xA0, 0x1C53BB6B, 0xBB, 0x114D9B74}

pytestmark = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")


def mp4_boxes(data, start=0, end=None):
    """Lists of siblings: the places of boxes, as (start, end)."""
    end = len(data) if end is None else end
    siblings, nested = [], []
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        if size < 8 or start + size > end:
            break
        siblings.append((start, start + size))
        if kind in MP4_PARENTS:
            nested += mp4_boxes(data, start + 8, start + size)
        start += size
    return [siblings, *nested]


def ebml_number(data, at, keeps_marker):
    """A number of one to eight bytes, and where it ends."""
    length = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + length], "big")
    return (value if keeps_marker else value & ((1 << 7 * length) - 1)), at + length


def ebml_elements(data, start=0, end=None):
    """The same of Matroska's elements; one of unknown size ends with the file."""
    end = len(data) if end is None else end
    siblings, nested = [], []
    while start + 2 <= end and data[start]:
        name, at = ebml_number(data, start, True)
        if at >= end or not data[at]:
            break
        size, body = ebml_number(data, at, False)
        after = min(body + size, end)
        siblings.append((start, after))
        if name in EBML_PARENTS:
            nested += ebml_elements(data, body, after)
        start = after
    return [siblings, *nested]


def mutated(data, container, draws):
    """The file with one kind of damage, and the kind's name."""
    kind = draws.choice(["bytes", "header", "cut", "hole", "swap", "repeat", "remove", "size"])
    data = bytearray(data)
    pieces = (mp4_boxes if container == "mp4" else ebml_elements)(data)
    siblings = draws.choice([some for some in pieces if len(some) > 1])
    (first, last) = sorted(draws.sample(siblings, 2))
    start, end = draws.choice(siblings)
    if kind == "bytes":
        for _ in range(draws.randint(1, 16)):
            data[draws.randrange(len(data))] = draws.choice([0, 1, 0x7F, 0x80, 0xFF, draws.randrange(256)])
    elif kind == "header":
        # What is no packet: all boxes but the largest.
        small = [(begin, min(stop, begin + 64)) for some in pieces for begin, stop in some]
        for _ in range(draws.randint(1, 4)):
            data[draws.randrange(*draws.choice(small))] ^= 1 << draws.randrange(8)
    elif kind == "cut":
        del data[draws.randrange(len(data)) :]
    elif kind == "hole":
        at = draws.randrange(len(data))
        data[at : at + draws.randint(1, 4096)] = bytes(min(draws.randint(1, 4096), len(data) - at))
    elif kind == "swap":
        one, between, other = data[slice(*first)], data[first[1] : last[0]], data[slice(*last)]
        data[first[0] : last[1]] = other + between + one
    elif kind == "repeat":
        data[end:end] = data[start:end] * draws.randint(1, 3)
    elif kind == "remove":
        del data[start:end]
    else:
        wrong = draws.choice([0, 1, 7, 0x7FFFFFFF, 0xFFFFFFFF, draws.randrange(1 << 32)])
        at = start if container == "mp4" else draws.randrange(start, end)
        data[at : at + 4] = struct.pack(">I", wrong)
    return kind, bytes(data)


def daemons():
    return [number for number, (parent, line) in processes().items() if parent == os.getpid() and "forebay" in line]


@pytest.mark.parametrize("container", CONTAINERS)
def test_no_damage_ends_the_daemon_and_each_defect_has_a_reason(container, tmp_path):
    files = sorted(file for file in VIDEOS.iterdir() if file.suffix in CONTAINERS[container] and file.stem != "vorbis")
    draws, folder = random.Random(container), tmp_path / "videos"
    folder.mkdir()
    for number, file in enumerate(files):
        shutil.copy(file, folder / f"whole-{number:03}{file.suffix}")
    kinds = {}
    for number in range(COUNT):
        file = draws.choice(files)
        name = f"{number:05}{file.suffix}"
        kinds[name], data = mutated(file.read_bytes(), container, draws)
        (folder / name).write_bytes(data)
    dataset = {"path": str(folder), "format": "video-folder", "frames": 3, "stride": 2}
    operations = [{"op": "decode-video"}, {"op": "resize", "size": [24, 32]}]
    policy = {"policy": "normal"}
    config = config_of(dataset, operations, cpu=policy, output={"video": {"layout": "NCHW"}})
    found, reasons = collections.Counter(), collections.Counter()
    names = sorted(file.name for file in folder.iterdir())
    samples = forebay.Dataset(config, shared=False)
    daemon = daemons()
    for number, name in enumerate(names):
        try:
            row = samples[number]
        except forebay.BadSample as bad:
            assert name in str(bad), f"{name}: {bad}"
            assert not name.startswith("whole"), bad
            reason = str(bad).splitlines()[0].partition(name)[2]
            assert len(reason) > 20, bad
            reasons[re.sub(r"[0-9.]+", "0", reason)] += 1
            found[kinds[name], "refused"] += 1
        else:
            assert row["video"].shape == (3, 3, 24, 32) and numpy.isfinite(row["times"]).all()
            if not name.startswith("whole"):
                found[kinds[name], "decoded"] += 1
    assert daemons() == daemon and daemon
    for reason, count in reasons.most_common():
        print(count, reason)
    print(sorted(found.items()))
    refused = sum(count for (_, how), count in found.items() if how == "refused")
    assert 0 < refused < COUNT
