"""`[dataset.windows]` over HDF5 files that h5py writes: windows are slices of the datasets."""

import forebay
import numpy
import pytest
from support import digests, rows_of
from test_windows import config

h5py = pytest.importorskip("h5py")

LENGTH, STRIDE = 8, 3
WAYS = {
    "one range": {},
    "chunks": {"chunks": (5, 2)},
    "gzip": {"chunks": (7, 3), "compression": "gzip"},
    "gzip, shuffled, with checksums": {"chunks": (7, 3), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": (16, 3), "compression": "lzf"},
    "checksums": {"chunks": (4, 3), "fletcher32": True},
    "growing": {"chunks": (6, 3), "maxshape": (None, 3), "compression": "gzip"},
}


def values(rows, seed, dtype="<f4"):
    generator = numpy.random.default_rng(seed)
    # Some chunks do not become smaller, so that their filter is left out.
    noisy = generator.integers(0, 2, (rows, 1)) * generator.integers(-999, 999, (rows, 3))
    return noisy.astype(dtype)


def read(folder, keys, path="data", **options):
    with forebay.Loader(config(folder, keys, kind="hdf5", path=path, **options)) as loader:
        return rows_of(loader)


KEYS = f"length = {LENGTH}\nstride = {STRIDE}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1", "<f2", "<u8"])
def test_windows_are_slices_of_datasets(tmp_path, way, dtype):
    x = values(50, 1, dtype)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=x, **WAYS[way])
        file["y"] = numpy.arange(50)
        file["flag"] = numpy.arange(50) % 3 == 0
    found = read(tmp_path, KEYS, "data.h5")
    assert len(found) == (50 - LENGTH) // STRIDE + 1
    for index, row in found.items():
        rows = slice(index * STRIDE, index * STRIDE + LENGTH)
        assert set(row) == {"x", "y", "flag"}
        assert row["x"].dtype == numpy.dtype(dtype).newbyteorder("=") and row["flag"].dtype == bool
        numpy.testing.assert_array_equal(row["x"], x[rows])
        numpy.testing.assert_array_equal(row["y"], numpy.arange(50)[rows])
        numpy.testing.assert_array_equal(row["flag"], numpy.arange(50)[rows] % 3 == 0)


FIELDS = """
[dataset.windows.fields]
x = { from = "obs/x" }
action = { from = "actions", start = -1 }
"""


@pytest.fixture
def episodes(tmp_path):
    """Two files of groups that are episodes, as robomimic writes them, with chunks of the shapes that h5py chooses."""
    (tmp_path / "data").mkdir()
    found = []
    for number in range(2):
        with h5py.File(tmp_path / "data" / f"{number}.hdf5", "w", userblock_size=512 * number) as file:
            groups = {}
            for demo in range(14):
                rows = 5 + 9 * demo
                group = file.create_group(f"data/demo_{demo}")
                group.attrs["samples"] = rows
                x = values(rows, 100 * number + demo)
                group.create_dataset("obs/x", data=x, chunks=True, compression="gzip" if demo % 2 else None)
                group["actions"] = x[:, 0].astype(numpy.float64)
                groups[f"demo_{demo}"] = x
            file["mask/train"] = numpy.array([b"demo_1"])
            found += [groups[name] for name in sorted(groups)]
    return found


def test_groups_are_episodes(tmp_path, episodes):
    rows = read(tmp_path, KEYS + FIELDS)
    expected = [(x, start) for x in episodes for start in range(1, len(x) - LENGTH + 1, STRIDE)]
    assert sorted(rows) == list(range(len(expected)))
    for index, (x, start) in enumerate(expected):
        numpy.testing.assert_array_equal(rows[index]["x"], x[start : start + LENGTH])
        numpy.testing.assert_array_equal(rows[index]["action"], x[start - 1 : start - 1 + LENGTH, 0])


def test_a_run_is_resumed_at_the_next_window(tmp_path, episodes):
    toml = config(tmp_path, KEYS + FIELDS, kind="hdf5")
    whole = digests(toml)
    with forebay.Loader(toml) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    assert digests(toml, state=state) == whole[3:]


def test_a_dataset_tells_episodes_apart(tmp_path):
    x = values(30, 3)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["episode"] = x, numpy.repeat([3, 1, 3], [12, 3, 15])
    found = read(tmp_path, KEYS + '\nby = "episode"', "data.h5")
    starts = [0, 3, 15, 18, 21]
    assert len(found) == len(starts)
    for index, start in enumerate(starts):
        numpy.testing.assert_array_equal(found[index]["x"], x[start : start + LENGTH])


def test_elements_that_no_one_wrote_have_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("none", (20,), "<i4", chunks=(4,), fillvalue=-7)
        some = file.create_dataset("some", (20,), "<i4", chunks=(4,), fillvalue=5, compression="gzip")
        some[9:11] = 1
        file.create_dataset("late", (20,), "<f4", fillvalue=2.5)
        expected = {name: file[name][:] for name in file}
    found = read(tmp_path, "length = 20", "data.h5")
    for name, value in expected.items():
        numpy.testing.assert_array_equal(found[0][name], value)


def test_chunks_that_do_not_become_smaller_are_without_their_filter(tmp_path):
    x = numpy.frombuffer(numpy.random.default_rng(1).bytes(4 * 90), "<i4").reshape(30, 3).copy()
    x[10:] = 1
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(5, 3), compression="lzf", shuffle=True)
        masks = {file["x"].id.get_chunk_info(chunk).filter_mask for chunk in range(6)}
    assert len(masks) == 2, masks
    numpy.testing.assert_array_equal(read(tmp_path, "length = 30", "data.h5")[0]["x"], x)


def test_small_datasets_within_headers_and_many_in_a_group_are_read(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_layout(h5py.h5d.COMPACT)
        space, kind = h5py.h5s.create_simple((9, 2)), h5py.h5t.NATIVE_INT32
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"c", kind, space, properties))
        dataset[:] = numpy.arange(18).reshape(9, 2)
        for number in range(300):
            file[f"many/{number}"] = numpy.full(9, number)
    keys = "length = 9\nfields.c = {}"
    numpy.testing.assert_array_equal(read(tmp_path, keys, "data.h5")[0]["c"], numpy.arange(18).reshape(9, 2))
    keys = 'length = 9\nfields.c = { from = "many/299" }\nfields.d = { from = "many/7" }'
    found = read(tmp_path, keys, "data.h5")
    assert (found[0]["c"] == 299).all() and (found[0]["d"] == 7).all()


@pytest.mark.parametrize("count", [5, 40, 3000])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_groups_whose_order_of_creation_is_kept_are_read(tmp_path, count, libver):
    with h5py.File(tmp_path / "data.h5", "w", libver=libver) as file:
        group = file.create_group("g", track_order=True)
        for number in range(count):
            group[f"a name of some length {number}"] = numpy.full(9, number)
        # Places in the heap that are free again.
        for number in range(1, count, 7):
            del group[f"a name of some length {number}"]
    for number in {0, 3, count // 14 * 7, count - 1} - {*range(1, count, 7)}:
        (tmp_path / "saved.index").unlink(missing_ok=True)
        found = read(tmp_path, f'length = 9\nfields.x = {{ from = "g/a name of some length {number}" }}', "data.h5")
        assert (found[0]["x"] == number).all()


def test_netcdf_files_are_read(tmp_path):
    netcdf = pytest.importorskip("netCDF4")
    x = values(100, 1)
    with netcdf.Dataset(tmp_path / "data.h5", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        for number in range(12):
            variable = file.createVariable(f"v{number}", "f4", ("time", "x"), zlib=True, chunksizes=(10, 3))
            variable[:] = x + number
    found = read(tmp_path, KEYS + '\nfields.a = { from = "v3" }\nfields.b = { from = "v11" }', "data.h5")
    numpy.testing.assert_array_equal(found[2]["a"], x[6:14] + 3)
    numpy.testing.assert_array_equal(found[2]["b"], x[6:14] + 11)


def test_only_groups_with_all_datasets_are_episodes(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["demo_0/action"], file["demo_0/obs/x"] = numpy.arange(9), numpy.arange(9)
        file["demo_0/obs/action"], file["stats/action"] = numpy.zeros(3), numpy.zeros(2)
        # An object of several paths.
        file["demo_1/action"], file["demo_1/obs/x"] = file["demo_0/action"], file["demo_0/obs/x"]
    keys = 'length = 9\nfields.action = {}\nfields.x = { from = "obs/x" }\nfields.again = { from = "/obs/x" }'
    found = read(tmp_path, keys, "data.h5")
    assert len(found) == 2 and all((found[1][name] == numpy.arange(9)).all() for name in ("action", "x", "again"))


@pytest.mark.parametrize("name", ["data.nc", "data.mat", "DATA.HDF5"])
@pytest.mark.parametrize("moved", [-512, 0, 512])
def test_files_of_other_names_and_moved_user_blocks_are_read(tmp_path, name, moved):
    with h5py.File(tmp_path / "made", "w", userblock_size=512) as file:
        file.create_dataset("x", data=values(50, 1), chunks=(20, 3))
    made = (tmp_path / "made").read_bytes()
    (tmp_path / name).write_bytes(made[512:] if moved < 0 else bytes(moved) + made)
    numpy.testing.assert_array_equal(read(tmp_path, KEYS, name)[1]["x"], values(50, 1)[STRIDE : STRIDE + LENGTH])


def test_named_types_and_parts_that_are_stored_apart_are_refused(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["type"] = numpy.dtype("<f4")
        file.create_dataset("x", data=values(9, 1), dtype=file["type"])
    with pytest.raises(forebay.Error, match=r"the dataset \"x\": its type has a name, and is stored apart"):
        read(tmp_path, "length = 2\nfields.x = {}", "data.h5")


def test_floats_with_another_bias_are_refused(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_ebias(100)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((9,)))
    with pytest.raises(forebay.Error, match="floats of another form than IEEE's"):
        read(tmp_path, "length = 2", "data.h5")


def test_bits_are_numbers_and_only_false_and_true_are_booleans(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        space = h5py.h5s.create_simple((4,))
        for name, kind in {
            "bits": h5py.h5t.STD_B8LE,
            "swapped": h5py.h5t.enum_create(h5py.h5t.STD_I8LE),
        }.items():
            if name == "swapped":
                kind.enum_insert(b"FALSE", 1)
                kind.enum_insert(b"TRUE", 0)
            dataset = h5py.h5d.create(file.id, name.encode(), kind, space)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, numpy.array([0, 1, 1, 0], "i1"), kind)
    found = read(tmp_path, "length = 4", "data.h5")[0]
    assert found["bits"].dtype == numpy.uint8 and found["swapped"].dtype == numpy.int8
    assert found["bits"].tolist() == found["swapped"].tolist() == [0, 1, 1, 0]


def test_names_that_are_read_again_and_again_are_refused(tmp_path):
    """A group whose list has one long name 65,535 times would need gigabytes."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["n" * 60_000] = numpy.zeros(3)
    made = bytearray((tmp_path / "data.h5").read_bytes())
    at = made.index(b"SNOD")
    entry = made[at + 8 : at + 48]
    pointer = made.index(at.to_bytes(8, "little"))
    made[pointer : pointer + 8] = len(made).to_bytes(8, "little")
    made += b"SNOD\x01\x00\xff\xff" + entry * 0xFFFF
    (tmp_path / "data.h5").write_bytes(made)
    with pytest.raises(forebay.Error, match="lead to each other again and again"):
        read(tmp_path, "length = 2", "data.h5")


def test_a_dataset_that_says_more_rows_than_are_stored_is_refused(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = numpy.zeros(4321, "i4"), numpy.ones(9)
    made = (tmp_path / "data.h5").read_bytes()
    (tmp_path / "data.h5").write_bytes(made.replace((4321).to_bytes(8, "little"), (4330).to_bytes(8, "little")))
    with pytest.raises(forebay.Error, match="its elements have 17320 bytes, and 17284 are stored"):
        read(tmp_path, "length = 2\nfields.x = {}", "data.h5")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damage_is_not_delivered(tmp_path, libver):
    """Of a file whose chunks have checksums, each bit flip is refused, is a bad sample, or changes nothing."""
    x = values(40, 1)
    with h5py.File(tmp_path / "whole.h5", "w", libver=("v108", "v108") if libver == "latest" else libver) as file:
        file.create_dataset("x", data=x, chunks=(8, 3), compression="gzip", fletcher32=True, track_times=False)
    whole = (tmp_path / "whole.h5").read_bytes()
    assert (b"OHDR" in whole) == (libver == "latest")
    generator = numpy.random.default_rng(5)
    wrong = 0
    for _ in range(60):
        bytes_ = bytearray(whole)
        bytes_[generator.integers(len(bytes_))] ^= 1 << generator.integers(8)
        (tmp_path / "data.h5").write_bytes(bytes_)
        (tmp_path / "saved.index").unlink(missing_ok=True)
        try:
            found = read(tmp_path, "length = 40", "data.h5")
        except forebay.Error:
            continue
        if found and not (found[0]["x"] == x).all():
            # As the library: a fill value or a type that is another, sound one.
            with h5py.File(tmp_path / "data.h5") as file:
                numpy.testing.assert_array_equal(file["x"][:], found[0]["x"])
            wrong += 1
    assert wrong < 10


def test_chunks_that_are_not_in_the_file_or_have_another_size_are_refused(tmp_path):
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        dataset = file.create_dataset("x", data=values(1357, 1), chunks=(1357, 3))
        chunk = dataset.id.get_chunk_info(0)
    whole = (tmp_path / "whole.h5").read_bytes()
    place, size = (number.to_bytes(8, "little") for number in (chunk.byte_offset, chunk.size))
    for old, new, said in [
        (
            place,
            len(whole).to_bytes(8, "little"),
            f"ends at byte {len(whole) + chunk.size}, and the file has {len(whole)}",
        ),
        (size, (chunk.size - 4).to_bytes(8, "little"), f"has no filters, and a chunk of {chunk.size - 4} bytes"),
    ]:
        assert old in whole
        (tmp_path / "data.h5").write_bytes(whole.replace(old, new))
        (tmp_path / "saved.index").unlink(missing_ok=True)
        with pytest.raises(forebay.Error, match=said):
            read(tmp_path, "length = 2", "data.h5")


def test_a_checksum_of_a_chunk_alone_is_compared(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.create_dataset("x", data=values(16, 1), chunks=(8, 3), fletcher32=True)
        place = file["x"].id.get_chunk_info(1).byte_offset
    made = bytearray((tmp_path / "data.h5").read_bytes())
    made[place + 5] ^= 1
    (tmp_path / "data.h5").write_bytes(made)
    with pytest.raises(forebay.Error, match="a chunk does not have its checksum"):
        read(tmp_path, "length = 8", "data.h5")


def test_datasets_that_end_outside_of_the_file_or_are_not_in_step_are_refused(tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = numpy.zeros((90, 7)), numpy.zeros(91)
    with pytest.raises(forebay.Error, match='"y" has 91 rows, and "x" has 90: datasets in step'):
        read(tmp_path, "length = 8", "data.h5")
    made = (tmp_path / "data.h5").read_bytes()
    (tmp_path / "data.h5").write_bytes(made[:-100])
    with pytest.raises(forebay.Error, match=r"ends at byte [0-9]+, and the file has [0-9]+: it is cut off"):
        read(tmp_path, "length = 8\nfields.x = {}\nfields.y = {}", "data.h5")


def test_files_that_differ_are_refused(tmp_path):
    """The second one has another name, type, shape of a row or fill value, or another dataset."""
    for number, (write, said) in enumerate(
        [
            (lambda file: file.__setitem__("y", numpy.zeros((9, 2))), 'are ["y"], and those of other files ["x"]'),
            (lambda file: file.update(x=numpy.zeros((9, 2)), y=numpy.zeros(9)), 'are ["x", "y"], and those of other'),
            (
                lambda file: file.__setitem__("x", numpy.zeros((9, 2), "f4")),
                "float32 [2], and those of other `x` float64 [2]",
            ),
            (lambda file: file.__setitem__("x", numpy.zeros((9, 2), ">f8")), "float64 [2], big endian, and those"),
            (lambda file: file.create_dataset("x", (9, 2), "f8", fillvalue=1), "float64 [2], with the fill value"),
        ]
    ):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with h5py.File(folder / "a.h5", "w") as file:
            file["x"] = numpy.zeros((9, 2))
        with h5py.File(folder / "b.h5", "w") as file:
            write(file)
        (tmp_path / "saved.index").unlink(missing_ok=True)
        with pytest.raises(forebay.Error) as error:
            read(tmp_path, "length = 2", folder.name)
        assert "b.h5: " in str(error.value) and said in str(error.value)


def test_chunks_of_several_files_are_told_apart(tmp_path):
    """Files whose datasets have other chunks and filters, in an order that is not that of their layouts."""
    (tmp_path / "data").mkdir()
    all_, more = [], [{"chunks": (4, 3)}, {"chunks": (5, 3), "compression": "gzip"}, {}]
    for number, options in enumerate([more[0], more[1], more[0], more[2], more[1]]):
        all_.append(values(20, number))
        with h5py.File(tmp_path / f"data/{number}.h5", "w") as file:
            file.create_dataset("x", data=all_[-1], **options)
    found = read(tmp_path, "length = 20", "data")
    assert len(found) == 5
    for number, rows in enumerate(all_):
        numpy.testing.assert_array_equal(found[number]["x"], rows)


def test_each_part_with_a_checksum_is_compared_with_it(tmp_path):
    """Bits that would change nothing: they tell that the checksum is looked at."""
    with h5py.File(tmp_path / "whole.h5", "w", libver=("v108", "v108")) as file:
        for number in range(3000):
            file[f"a name of some length {number}"] = numpy.full(9, number)
    whole = (tmp_path / "whole.h5").read_bytes()
    # A name's hash in a leaf and in an inner node, a statistic of the heap, percents of the tree, the end of the file.
    for mark, place in [(b"BTLF", 7), (b"BTIN", 7), (b"FRHP", 60), (b"BTHD", 14), (b"\x89HDF", 28)]:
        damaged = bytearray(whole)
        damaged[whole.index(mark) + place] ^= 1
        (tmp_path / "data.h5").write_bytes(damaged)
        (tmp_path / "saved.index").unlink(missing_ok=True)
        with pytest.raises(forebay.Error, match="damaged"):
            read(tmp_path, 'length = 9\nfields.x = { from = "a name of some length 7" }', "data.h5")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda file: file.__setitem__("x", ["a", "b"]), "its elements are"),
        (lambda file: file.__setitem__("x", 3.0), "it has no rows"),
        (
            lambda file: file.create_dataset("x", (9, 9), chunks=(3, 3), scaleoffset=2, dtype="i4"),
            "(scaleoffset) is not read",
        ),
        (
            lambda file: file.__setitem__("y", numpy.arange(3)),
            'it has no dataset "x", which dataset.windows names; it has `y`',
        ),
        (lambda file: file.create_dataset("x", data=numpy.zeros(3, "i4,f4")), "its elements are structures"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, write, said):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        write(file)
    with pytest.raises(forebay.Error) as error:
        read(tmp_path, "length = 2\nfields.x = {}", "data.h5")
    assert "data.h5" in str(error.value) and said in str(error.value)


# A shape, the shape of chunks, and the greatest shape. The library lists chunks in a different way for each.
LISTS = {
    "one": ((40, 3), (40, 3), None),
    "one that is larger": ((40, 3), (64, 3), (64, 3)),
    "fixed": ((50, 3), (4, 2), None),
    "fixed, which grows": ((50, 3), (4, 2), (100, 30)),
    "fixed, in pages": ((5000, 3), (2, 2), None),
    "growing": ((50, 3), (4, 2), (None, 7)),
    "growing along the second axis": ((50, 13), (4, 2), (50, None)),
    "growing along the middle": ((20, 7, 9), (3, 2, 4), (20, None, 20)),
    "growing, with sets": ((6000, 3), (2, 3), (None, 3)),
    "growing, in pages": ((400_000,), (1,), (None,)),
    "records": ((50, 3), (4, 2), (None, None)),
    "many records": ((3000, 30), (4, 2), (None, None)),
}


@pytest.mark.parametrize("version", [("v110", "v110"), "latest"])
@pytest.mark.parametrize("packing", [{}, {"compression": "gzip", "fletcher32": True}])
@pytest.mark.parametrize("name", LISTS)
def test_newer_lists_of_chunks_are_read(tmp_path, name, packing, version):
    shape, chunks, most = LISTS[name]
    if name == "growing, in pages" and packing:
        pytest.skip("it takes 30 s to write")
    x = numpy.random.default_rng(3).integers(0, 99, shape).astype("i2")
    with h5py.File(tmp_path / "data.h5", "w", libver=version) as file:
        dataset = file.create_dataset("x", shape, "i2", chunks=chunks, maxshape=most, fillvalue=-7, **packing)
        # Some chunks are not there.
        gap = slice(shape[0] // 3 // chunks[0] * chunks[0], shape[0] // 2 // chunks[0] * chunks[0])
        dataset[: gap.start], dataset[gap.stop :] = x[: gap.start], x[gap.stop :]
        x[gap] = -7
    length = min(shape[0], 10_000)
    found = read(tmp_path, f"length = {length}", "data.h5")
    numpy.testing.assert_array_equal(numpy.concatenate([found[id]["x"] for id in range(shape[0] // length)]), x)


def test_chunks_in_a_row_are_read(tmp_path):
    x = values(50, 1)
    with h5py.File(tmp_path / "data.h5", "w", libver="latest") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 2))
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        space = h5py.h5s.create_simple((50, 3), (60, 9))
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, properties))[:] = x
    numpy.testing.assert_array_equal(read(tmp_path, "length = 50", "data.h5")[0]["x"], x)


@pytest.mark.parametrize("name", ["one", "fixed, in pages", "growing, with sets", "many records"])
def test_damaged_lists_of_chunks_are_not_delivered(tmp_path, name):
    """Each bit of a list counts."""
    shape, chunks, most = LISTS[name]
    with h5py.File(tmp_path / "whole.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=numpy.arange(numpy.prod(shape)).reshape(shape), chunks=chunks, maxshape=most)
    whole = (tmp_path / "whole.h5").read_bytes()
    marks = [b"OHDR", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"BTHD", b"BTIN", b"BTLF"]
    found = [mark for mark in marks if mark in whole]
    assert len(found) == {"one": 1, "fixed, in pages": 3, "growing, with sets": 5, "many records": 4}[name]
    for mark in found:
        # In the middle of the part or of what it lists, and in the mark's version.
        for place in [16, 4]:
            damaged = bytearray(whole)
            damaged[whole.rindex(mark) + place] ^= 1
            (tmp_path / "data.h5").write_bytes(damaged)
            (tmp_path / "saved.index").unlink(missing_ok=True)
            with pytest.raises(forebay.Error, match="damaged"):
                read(tmp_path, f"length = {shape[0]}", "data.h5")


def test_cut_off_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_dataset("x", data=values(300, 1), chunks=(50, 3), compression="gzip")
    whole = (tmp_path / "whole.h5").read_bytes()
    for length in (0, 7, 50, 200, 900, len(whole) - 100):
        (tmp_path / "data.h5").write_bytes(whole[:length])
        with pytest.raises(forebay.Error, match=r"data\.h5"):
            read(tmp_path, KEYS, "data.h5")
