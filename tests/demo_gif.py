"""A reader of GIFs, written from the GIF89a specification alone, to check the demo's writer."""

from dataclasses import dataclass

CLEAR, END = 256, 257


@dataclass
class Picture:
    width: int
    height: int
    palette: bytes
    frames: list[bytes]  # one palette index a pixel
    delays: list[int]  # hundredths of a second

    def rgb(self, frame: int) -> bytes:
        return b"".join(self.palette[3 * i : 3 * i + 3] for i in self.frames[frame])


def read_gif(data: bytes) -> Picture:
    assert data[:6] == b"GIF89a"
    assert data[10] & 0x87 == 0x87, "a global palette of 256 colours"
    width, height = word(data, 6), word(data, 8)
    picture = Picture(width, height, data[13 : 13 + 768], [], [])
    canvas, at, transparent = bytearray(width * height), 13 + 768, -1
    while data[at] != 0x3B:
        if data[at] == 0x2C:
            at = read_image(data, at, picture, canvas, transparent)
            continue
        assert data[at] == 0x21, f"unknown block {data[at]:#x} at {at}"
        body, end = read_blocks(data, at + 2)
        if data[at + 1] == 0xF9:
            assert body[0] >> 2 & 7 == 1, "frames stay in place"
            transparent = body[3] if body[0] & 1 else -1
            picture.delays.append(word(body, 1))
        at = end
    assert at == len(data) - 1, "the trailer is the last byte"
    return picture


def read_image(data: bytes, at: int, picture: Picture, canvas: bytearray, transparent: int) -> int:
    left, top, width, height = (word(data, at + i) for i in (1, 3, 5, 7))
    assert data[at + 9] == 0, "no local palette, not interlaced"
    assert data[at + 10] == 8
    body, end = read_blocks(data, at + 11)
    pixels = decompress(body)
    assert len(pixels) == width * height
    for i, pixel in enumerate(pixels):
        if pixel != transparent:
            canvas[(top + i // width) * picture.width + left + i % width] = pixel
    picture.frames.append(bytes(canvas))
    return end


def read_blocks(data: bytes, at: int) -> tuple[bytes, int]:
    body = b""
    while size := data[at]:
        body += data[at + 1 : at + 1 + size]
        at += 1 + size
    return body, at + 1


def decompress(data: bytes) -> bytes:
    table: list[bytes] = []
    pixels, last, size = bytearray(), b"", 9
    bits = count = 0
    for byte in data:
        bits |= byte << count
        count += 8
        if count < size:
            continue
        code, bits, count = bits & ((1 << size) - 1), bits >> size, count - size
        if code == END:
            return bytes(pixels)
        if code == CLEAR:
            table = [bytes([i]) for i in range(256)] + [b"", b""]
            last, size = b"", 9
            continue
        entry = table[code] if code < len(table) else last + last[:1]
        assert entry, f"code {code} before it is known"
        if last and len(table) < 4096:
            table.append(last + entry[:1])
        last = entry
        pixels += entry
        if len(table) == 1 << size and size < 12:
            size += 1
    raise AssertionError("no end code")


def word(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8
