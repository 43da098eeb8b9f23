"""TIFF and BMP files that Pillow does not write."""

import struct
import zlib

import numpy as np


def old_lzw(data):
    """LZW as before TIFF 5.0: codes begin with their lowest bit, and become longer as in a GIF."""
    bits, count, out = 0, 0, bytearray()
    table, size = {bytes([level]): level for level in range(256)}, 9

    def put(code):
        nonlocal bits, count
        bits |= code << count
        count += size
        while count >= 8:
            out.append(bits & 255)
            bits, count = bits >> 8, count - 8

    put(256)
    known, free = b"", 258
    for level in data:
        longer = known + bytes([level])
        if longer in table:
            known = longer
            continue
        put(table[known])
        known = bytes([level])
        if free == 4094:
            put(256)
            table, free, size = {bytes([level]): level for level in range(256)}, 258, 9
            continue
        table[longer] = free
        # The reader is one entry behind.
        size += free == 1 << size
        free += 1
    put(table[known])
    put(257)
    return bytes(out) + bytes([bits])


def packed(data, code):
    """Deflate, old LZW, or the runs of PackBits that have no runs."""
    if code == 5:
        return old_lzw(data)
    if code == 8:
        return zlib.compress(data)
    if code == 32773:
        parts = [data[start : start + 128] for start in range(0, len(data), 128)]
        return b"".join(bytes([len(part) - 1]) + part for part in parts)
    return data


def samples_of(block, bits, order):
    """A block's rows as a file has them, each padded to whole bytes."""
    if block.dtype.kind != "u":
        return block.astype(block.dtype.newbyteorder(order)).tobytes()
    if bits >= 8:
        return block.astype(f"{order}u{bits // 8}").tobytes()
    rows = np.unpackbits(block.astype(np.uint8)[..., None], axis=-1)[..., 8 - bits :]
    return np.packbits(rows.reshape(len(block), -1), axis=1).tobytes()


def differences_of_floats(block):
    """Predictor 3: of each row first the highest bytes of all floats; of bytes the differences to the pixel before."""
    height, width, samples = block.shape
    highest_first = block.astype(block.dtype.newbyteorder(">")).reshape(height, -1).view(np.uint8)
    planes = highest_first.reshape(height, width * samples, -1).transpose(0, 2, 1).reshape(height, -1).copy()
    planes[:, samples:] -= planes[:, :-samples].copy()
    return planes.tobytes()


def tiff(
    array, bits, photometric, *, order="<", code=1, predictor=1, tile=None, rows=7, planar=False, tags=None, listed=None
):
    """A TIFF of the samples [height, width, samples]: Pillow writes neither tiles nor planes nor 16-bit colours."""
    height, width, samples = array.shape
    planes = [array[..., i : i + 1] for i in range(samples)] if planar else [array]
    chunk_height, chunk_width = (tile[0], tile[1]) if tile else (rows, width)
    chunks = []
    for plane in planes:
        for top in range(0, height, chunk_height):
            for left in range(0, width, chunk_width):
                block = plane[top : top + chunk_height, left : left + chunk_width]
                if tile:
                    missing = [(0, chunk_height - block.shape[0]), (0, chunk_width - block.shape[1]), (0, 0)]
                    block = np.pad(block, missing, mode="edge")
                if predictor == 3:
                    chunks.append(packed(differences_of_floats(block), code))
                    continue
                if predictor == 2:
                    block = np.concatenate([block[:, :1], block[:, 1:] - block[:, :-1]], axis=1)
                chunks.append(packed(samples_of(block, bits, order), code))
    entries = {256: (3, [width]), 257: (3, [height]), 258: (3, [bits] * samples), 259: (3, [code])}
    entries |= {262: (3, [photometric]), 277: (3, [samples]), 284: (3, [2 if planar else 1]), 317: (3, [predictor])}
    # FillOrder 2: the bits of each byte in reverse order.
    if (tags or {}).get(266) == (3, [2]):
        chunks = [
            np.packbits(np.unpackbits(np.frombuffer(part, np.uint8)), bitorder="little").tobytes() for part in chunks
        ]
    # Tiles may be listed as strips.
    offsets = listed or (324 if tile else 273)
    entries[offsets] = (4, [0] * len(chunks))
    entries[325 if offsets == 324 else 279] = (4, [len(part) for part in chunks])
    entries |= {322: (3, [tile[1]]), 323: (3, [tile[0]])} if tile else {278: (3, [rows])}
    entries |= tags or {}
    count = len(entries)
    values_at = 8 + 2 + 12 * count + 4
    at = values_at + sum(len(values) * (2 if kind == 3 else 4) for kind, values in entries.values())
    entries[offsets] = (4, [at + sum(map(len, chunks[:i])) for i in range(len(chunks))])
    directory, values_bytes = b"", b""
    for number, (kind, values) in sorted(entries.items()):
        data = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(data) > 4:
            place = struct.pack(f"{order}I", values_at + len(values_bytes))
            values_bytes += data
        else:
            place = data.ljust(4, b"\0")
        directory += struct.pack(f"{order}HHI", number, kind, len(values)) + place
    values_bytes = values_bytes.ljust(at - values_at, b"\0")
    magic = b"II" if order == "<" else b"MM"
    head = magic + struct.pack(f"{order}HIH", 42, 8, count)
    return head + directory + bytes(4) + values_bytes + b"".join(chunks)


def levels(samples, bits, width=67, height=45):
    random = np.random.default_rng(samples * bits)
    return random.integers(0, 1 << bits, (height, width, samples)).astype(np.uint16 if bits == 16 else np.uint8)


def bmp(bits, rows, *, compression=0, masks=(), palette=b"", height=None, header_bytes=40, alpha=None):
    height = len(rows) if height is None else height
    width = {1: 37, 4: 37, 8: 37}.get(bits, len(rows[0]) * 8 // bits)
    body = b"".join(row + bytes(-len(row) % 4) for row in rows)
    header = struct.pack(
        "<IiiHHIIiiII", header_bytes, width, height, 1, bits, compression, 0, 0, 0, len(palette) // 4, 0
    )
    header += b"".join(mask.to_bytes(4, "little") for mask in masks)
    header = header.ljust(header_bytes, b"\0")
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + palette + body
