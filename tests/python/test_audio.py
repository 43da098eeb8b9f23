"""Sounds as Python's wave module and libsndfile write them, through the whole program: the floats that libsndfile
reads."""

import ctypes.util
import io
import json
import math
import shutil
import struct
import subprocess
import wave
from pathlib import Path

import forebay
import numpy
import pytest
from support import config_of, rows_of, write_tar

COUNT = 12


def tone(number, frames, channels, rate=16000):
    """A chirp in each channel, with steps and silence."""
    random = numpy.random.default_rng(number)
    time = numpy.arange(frames)[:, None] / rate
    sound = 0.6 * numpy.sin(2 * math.pi * (200 + 50 * number) * (1 + time) * time * numpy.arange(1, channels + 1))
    sound += random.normal(0, 0.02, sound.shape)
    sound[frames // 3 : frames // 2] = 0.99
    return numpy.clip(sound, -1, 0.999)


def lengths(number):
    return 800 + 331 * number


def manifest(tmp_path, names):
    path = tmp_path / "sounds.jsonl"
    path.write_text("".join(json.dumps({"path": name, "label": place}) + "\n" for place, name in enumerate(names)))
    return path


def read(dataset, state=None, **more):
    """The sound of each sample, and its other fields."""
    output = {"audio": {"ragged": True, "max_bytes": "1MiB"}}
    with forebay.Loader(config_of(dataset, batch={"size": 5}, output=output, **more), state=state) as loader:
        rows = rows_of(loader)
    assert all(row["audio"].dtype == numpy.float32 for row in rows.values())
    sounds = {index: row.pop("audio") for index, row in rows.items()}
    return sounds, {index: {name: value.item() for name, value in row.items()} for index, row in rows.items()}


def write_wave(path, levels, rate):
    """Writes levels of 16 bits, a column for each channel."""
    with wave.open(path if isinstance(path, io.BytesIO) else str(path), "wb") as file:
        file.setparams((1 if levels.ndim == 1 else levels.shape[1], 2, rate, 0, "NONE", ""))
        file.writeframes(levels.astype("<i2").tobytes())


def fields(**more):
    return {
        "audio": {"from": "path", "as": "audio", **more},
        "rate": {"from": "path", "as": "sample-rate"},
        "label": {"from": "label", "as": "integer"},
    }


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_what_the_wave_module_writes(tmp_path, width, channels):
    names, expected = [], []
    for number in range(COUNT):
        scaled = numpy.rint(tone(number, lengths(number), channels) * (1 << (8 * width - 1))).astype(numpy.int64)
        scaled = scaled.clip(-(1 << (8 * width - 1)), (1 << (8 * width - 1)) - 1)
        stored = scaled + 128 if width == 1 else scaled
        data = stored.astype("<i8").view(numpy.uint8).reshape(*stored.shape, 8)[..., :width]
        names.append(f"{number:02}.wav")
        with wave.open(str(tmp_path / names[-1]), "wb") as file:
            file.setparams((channels, width, 8000 + number, 0, "NONE", ""))
            file.writeframes(data.tobytes())
        expected.append(scaled.astype(numpy.float32) / numpy.float32(1 << (8 * width - 1)))
    path = manifest(tmp_path, names)
    dataset = {"format": "manifest", "path": str(path), "fields": fields(channels=channels)}
    sounds, others = read(dataset)
    assert len(sounds) == COUNT
    for number, sound in enumerate(expected):
        numpy.testing.assert_array_equal(sounds[number], sound)
        assert others[number] == {"rate": 8000 + number, "label": number}
    # One channel by default: the mean of all.
    mixed, _ = read({**dataset, "fields": fields()})
    for number, sound in enumerate(expected):
        mean = sound.astype(numpy.float64).mean(axis=1).astype(numpy.float32)
        assert mixed[number].shape == mean.shape
        numpy.testing.assert_array_equal(mixed[number], mean)


KINDS = [("WAV", name) for name in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")]
KINDS += [("WAVEX", "PCM_16"), ("RF64", "PCM_24"), ("FLAC", "PCM_S8"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24")]
BOTH_ENDS = [("AIFF", "PCM_16"), ("AIFF", "PCM_24"), ("AIFF", "PCM_32"), ("CAF", "PCM_16"), ("CAF", "PCM_24")]
BOTH_ENDS += [("CAF", "FLOAT"), ("CAF", "DOUBLE")]
KINDS = [(*kind, "FILE") for kind in KINDS] + [(*kind, end) for kind in BOTH_ENDS for end in ("LITTLE", "BIG")]
KINDS += [("AIFF", name, "FILE") for name in ("PCM_S8", "PCM_U8", "FLOAT", "DOUBLE", "ULAW", "ALAW")]
KINDS += [("AU", name, "BIG") for name in ("PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")]
KINDS += [("CAF", name, "FILE") for name in ("PCM_S8", "PCM_32", "ULAW", "ALAW")]


@pytest.mark.parametrize("kind,subtype,end", KINDS)
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_what_libsndfile_writes_is_what_it_reads(tmp_path, kind, subtype, end, channels):
    soundfile = pytest.importorskip("soundfile")
    suffix = kind.lower() if kind in ("FLAC", "AIFF", "AU", "CAF") else "wav"
    archive = tmp_path / "sounds.tar"
    expected, members = [], []
    for number in range(COUNT):
        buffer = io.BytesIO()
        soundfile.write(buffer, tone(number, lengths(number) * 9, channels), 22050, subtype, end, kind)
        buffer.seek(0)
        expected.append(soundfile.read(buffer, dtype="float32", always_2d=True)[0])
        members += [(f"{number:02}.{suffix}", buffer.getvalue()), (f"{number:02}.cls", b"%d" % number)]
    write_tar(archive, members)
    made = {
        "audio": {"from": [suffix], "as": "audio", "channels": channels},
        "rate": {"from": [suffix], "as": "sample-rate"},
        "label": {"from": "cls"},
    }
    sounds, others = read({"format": "webdataset", "path": str(archive), "fields": made})
    assert len(sounds) == COUNT
    for number, sound in enumerate(expected):
        numpy.testing.assert_array_equal(sounds[number], sound)
        assert others[number] == {"rate": 22050, "label": number}


LOSSY = [("MP3", "MPEG_LAYER_III", "mp3", 1e-4), ("OGG", "VORBIS", "ogg", 1e-4), ("OGG", "OPUS", "opus", 5e-3)]


@pytest.mark.parametrize("kind,subtype,suffix,tolerance", LOSSY)
@pytest.mark.parametrize("channels", [1, 2])
def test_lossy_sounds_are_as_long_as_libsndfile_says(tmp_path, kind, subtype, suffix, tolerance, channels):
    soundfile = pytest.importorskip("soundfile")
    rate = 48000 if subtype == "OPUS" else 22050
    expected, data = [], tmp_path / "data"
    data.mkdir()
    for number in range(COUNT):
        path = data / f"{number:02}.{suffix}"
        soundfile.write(path, tone(number, 3000 + lengths(number) * 9, channels, rate) / 2, rate, subtype, format=kind)
        expected.append(soundfile.read(path, dtype="float32", always_2d=True)[0])
    sounds, others = read({"format": "audio-folder", "path": str(data), "channels": channels})
    part, _ = read({"format": "audio-folder", "path": str(data), "channels": channels, "start": 0.05, "seconds": 0.07})
    for number, sound in enumerate(expected):
        assert sounds[number].shape == sound.shape, number
        assert abs(sounds[number] - sound).max() < tolerance, number
        assert others[number] == {"sample_rate": rate}
        start = round(0.05 * rate + 1e-6)
        numpy.testing.assert_array_equal(part[number], sounds[number][start : start + round(0.07 * rate + 1e-6)])


def test_a_mel_spectrogram_of_each_sound(tmp_path):
    names = []
    for number in range(4):
        names.append(f"{number}.wav")
        write_wave(tmp_path / names[-1], numpy.rint(tone(number, 4000 + 100 * number, 1)[:, 0] * 32767), 16000)
    made = fields(rate=16000)
    del made["rate"]
    dataset = {"format": "manifest", "path": str(manifest(tmp_path, names)), "fields": made}
    stage = [{"name": "mel", "operations": [{"op": "mel-spectrogram", "n_mels": 40, "log": "10"}]}]
    sounds, _ = read(dataset, stage=stage)
    for number in range(4):
        assert sounds[number].shape == (1 + (4000 + 100 * number) // 200, 40)
        assert -10 <= sounds[number].min() < sounds[number].max() < 6


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
def test_another_rate_is_scipys_resample_poly(tmp_path, rate, channels):
    """Within 2e-6: SciPy adds up in single precision, this in double."""
    signal = pytest.importorskip("scipy.signal")
    names, expected = [], []
    for number, before in enumerate([8000, 11025, 16000, 22050, 44100, 48000, 96000, 44100, 32000, 16000]):
        frames = [3000, 1, 2, 40, 3001, 9000, 9001, 5, 777, 0][number]
        scaled = numpy.rint(tone(number, frames, channels, before) * 32767)
        names.append(f"{number}.wav")
        write_wave(tmp_path / names[-1], scaled, before)
        sound = scaled.astype(numpy.float32) / 32768
        resampled = signal.resample_poly(sound, rate, before, axis=0) if frames else sound
        expected.append(resampled.astype(numpy.float32))
    path = manifest(tmp_path, names)
    more = fields(rate=rate, channels=channels)
    sounds, _ = read({"format": "manifest", "path": str(path), "fields": more})
    for number, sound in enumerate(expected):
        assert sounds[number].shape == sound.shape, number
        numpy.testing.assert_allclose(sounds[number], sound, atol=2e-6, rtol=0)


def test_a_folder_of_sounds_by_class(tmp_path):
    expected = []
    for number in range(6):
        path = tmp_path / "data" / ("dog" if number < 4 else "owl") / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        scaled = numpy.rint(tone(number, lengths(number), 2) * 32767)
        write_wave(path, scaled, 8000 + number)
        expected.append(scaled.astype(numpy.float32) / 32768)
    sounds, others = read({"path": str(tmp_path / "data"), "channels": 2})
    dataset = {"format": "audio-folder", "path": str(tmp_path / "data")}
    output = {"audio": {"ragged": True, "max_bytes": "1MiB"}}
    with forebay.Loader(config_of(dataset, batch={"size": 6}, output=output)) as loader:
        mixed = next(iter(loader))
        assert sorted(mixed) == ["audio", "index", "label", "sample_rate"]
        state = loader.state_dict()
    assert len(sounds) == 6
    for place, index in enumerate(mixed["index"].tolist()):
        numpy.testing.assert_array_equal(sounds[index], expected[index])
        mean = expected[index].astype(numpy.float64).mean(axis=1).astype(numpy.float32)
        numpy.testing.assert_array_equal(mixed["audio"][place], mean)
        assert (others[index]["label"], mixed["sample_rate"][place]) == (int(index >= 4), 8000 + index)
    with pytest.raises(forebay.StateMismatch, match="dataset differs"):
        read({"path": str(tmp_path / "data"), "rate": 8000}, state=state)


def test_damaged_and_unknown_sounds_are_bad_samples_with_a_reason(tmp_path):
    good = io.BytesIO()
    write_wave(good, numpy.zeros((1000, 2)), 16000)
    good = good.getvalue()
    broken = {
        "cut.wav": (good[:-100], "truncated"),
        "stereo-asked-as-one.wav": (good, "has 2 channels, and `channels = 1` is requested"),
        "song.mp3": (b"ID3\4" + bytes(400), "the MP3 file has no frame"),
        "ogg.wav": (b"OggS" + bytes(400), "the checksum of the page"),
        "aac.m4a": (bytes(4) + b"ftypM4A " + bytes(400), "cannot read the MP4 file"),
        "empty.wav": (b"", "empty"),
    }
    for name, (data, reason) in broken.items():
        (tmp_path / name).write_bytes(data)
        path = manifest(tmp_path, [name])
        more = {"channels": 1} if name.startswith("stereo") else {}
        with pytest.raises(forebay.Error) as raised:
            read({"format": "manifest", "path": str(path), "fields": fields(**more)})
        assert reason in str(raised.value), raised.value


has_libavcodec = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")
CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "sound_lossy"


def corpus(name):
    """A file of the corpus without what the fuzzer chooses by."""
    return (CORPUS / name).read_bytes()[3:]


@has_libavcodec
def test_aac_begins_where_the_sound_did(tmp_path):
    """The sounds are the mean of a chirp, a tone and noise (scripts/make-sounds)."""
    sounds = {"a.m4a": ("aac", 16000), "b.m4a": ("aac-he", 44100), "c.aac": ("adts", 16000)}
    for name, (source, _) in sounds.items():
        (tmp_path / name).write_bytes(corpus(source))
    dataset = {"format": "audio-folder", "path": str(tmp_path)}
    read_sounds, others = read(dataset)
    for index, (name, (_, rate)) in enumerate(sounds.items()):
        sound = read_sounds[index].astype(numpy.float64)
        assert others[index]["sample_rate"] == rate
        # Nothing in a file of AAC alone says what its encoder added before the sound.
        sound = sound[1024:] if name == "c.aac" else sound
        time = numpy.arange(len(sound)) / rate
        made = 0.2 * numpy.sin(2 * math.pi * (200 + 300 * time) * time) + 0.15 * numpy.sin(2 * math.pi * 700 * time)
        within = range(100, len(sound) - 100)
        alike = {shift: numpy.dot(sound[within], numpy.roll(made, shift)[within]) for shift in range(-80, 81)}
        # The filters of HE-AAC delay by halves of a frame.
        assert abs(max(alike, key=alike.get)) <= (name == "b.m4a"), (name, max(alike, key=alike.get))
    again, _ = read(dataset)
    assert all(numpy.array_equal(again[index], read_sounds[index]) for index in again)
    part, _ = read({**dataset, "start": 0.1, "seconds": 0.05})
    numpy.testing.assert_array_equal(part[0], read_sounds[0][1600:2400])


@has_libavcodec
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="there is no `ffmpeg`")
def test_aac_has_the_floats_of_ffmpeg(tmp_path):
    (tmp_path / "a.m4a").write_bytes(corpus("aac"))
    (tmp_path / "b.m4a").write_bytes(corpus("aac-fragments"))
    (tmp_path / "c.aac").write_bytes(corpus("adts"))
    ours, _ = read({"format": "audio-folder", "path": str(tmp_path)})
    for index, name in enumerate(["a.m4a", "b.m4a", "c.aac"]):
        command = ["ffmpeg", "-v", "error", "-nostdin", "-i", str(tmp_path / name), "-f", "f32le", "-"]
        theirs = numpy.frombuffer(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout, numpy.float32)
        theirs = theirs.reshape(-1, 2).mean(axis=1) if name == "b.m4a" else theirs
        # FFmpeg keeps what follows the sound in the last packet.
        assert 0 <= len(theirs) - len(ours[index]) < 1024, (name, len(theirs), len(ours[index]))
        numpy.testing.assert_allclose(ours[index], theirs[: len(ours[index])], rtol=0, atol=2e-6, err_msg=name)


@has_libavcodec
def test_ranks_compare_what_decodes_aac(tmp_path):
    """Its version and instructions decide the samples' last bits; other codings have decoders of the program."""
    output = {"audio": {"ragged": True, "max_bytes": "1MiB"}}
    compared = {}
    for name, source in {"a.m4a": "aac", "a.mp3": "mp3"}.items():
        folder = tmp_path / source
        folder.mkdir()
        (folder / name).write_bytes(corpus(source))
        dataset = {"format": "audio-folder", "path": str(folder)}
        with forebay.Loader(config_of(dataset, batch={"size": 1}, output=output)) as loader:
            compared[name] = loader._session.terms()["identity"]
    assert ",sounds=libavcodec " in compared["a.m4a"] and "sounds=" not in compared["a.mp3"], compared


@has_libavcodec
def test_damaged_aac_is_a_bad_sample(tmp_path):
    good = corpus("aac")
    at = good.index(b"mdat") + 40
    broken = {
        "cut.m4a": (good[: len(good) // 2], "the file is cut off"),
        "zeros.m4a": (good[:at] + bytes(500) + good[at + 500 :], "aac: "),
        "under-another-name.wav": (good, "AAC under a name of another coding"),
    }
    for name, (data, reason) in broken.items():
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_bytes(data)
        with pytest.raises(forebay.BadSample) as raised:
            read({"format": "audio-folder", "path": str(folder)})
        assert reason in str(raised.value), raised.value


def test_a_python_stage_gets_the_floats(tmp_path, monkeypatch):
    (tmp_path / "sound_stage_of_test.py").write_text(
        "import numpy as np\n"
        "def loudness(sample, rng):\n"
        "    assert sample['audio'].dtype == np.float32\n"
        "    loud = np.float32(np.abs(sample['audio']).max())\n"
        "    return {'audio': sample['audio'] * 2, 'loud': loud, 'label': sample['label']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for number in range(4):
        names.append(f"{number}.wav")
        write_wave(tmp_path / names[-1], numpy.full(100 + number, 4096 * (number + 1)), 16000)
    made = fields()
    del made["rate"]
    dataset = {"format": "manifest", "path": str(manifest(tmp_path, names)), "fields": made}
    stage = [{"name": "double", "python": "sound_stage_of_test:loudness"}]
    sounds, _ = read(dataset, stage=stage)
    for number in range(4):
        expected = numpy.full(100 + number, 2 * (number + 1) / 8, numpy.float32)
        numpy.testing.assert_array_equal(sounds[number], expected)


def test_a_column_of_bytes_in_a_shard_of_records(tmp_path):
    """MosaicML Streaming's layout; columns of Arrow, Parquet and TFRecord files are read in the same way."""
    samples, expected = [], []
    for number in range(COUNT):
        buffer = io.BytesIO()
        levels = numpy.rint(tone(number, lengths(number), 1) * 32767)
        write_wave(buffer, levels, 16000)
        data = buffer.getvalue()
        samples.append(struct.pack("<I", len(data)) + data + struct.pack("<q", number))
        expected.append(levels[:, 0].astype(numpy.float32) / 32768)
    columns = {"column_encodings": ["bytes", "int"], "column_names": ["sound", "label"], "column_sizes": [None, 8]}
    head = json.dumps(columns).encode()
    start = 4 + 4 * (COUNT + 1) + len(head)
    places = [start + sum(map(len, samples[:number])) for number in range(COUNT + 1)]
    shard = struct.pack(f"<I{COUNT + 1}I", COUNT, *places) + head + b"".join(samples)
    (tmp_path / "shard.00000.mds").write_bytes(shard)
    raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
    described = {**columns, "compression": None, "format": "mds", "hashes": [], "raw_data": raw, "samples": COUNT}
    described |= {"size_limit": 1 << 26, "version": 2, "zip_data": None}
    (tmp_path / "index.json").write_text(json.dumps({"shards": [described], "version": 2}))
    made = {
        "audio": {"from": "sound", "as": "audio"},
        "rate": {"from": "sound", "as": "sample-rate"},
        "label": {"from": "label"},
    }
    sounds, others = read({"format": "mds", "path": str(tmp_path), "fields": made})
    for number, sound in enumerate(expected):
        numpy.testing.assert_array_equal(sounds[number], sound)
        assert others[number] == {"rate": 16000, "label": number}
