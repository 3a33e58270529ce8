"""How many pictures of H.264 a decoder needs until they are whole, where no picture is stored whole.

With intra refresh, each picture stores another part of itself anew. "Key" samples of such videos have a recovery point:
a message (SEI) that says how many reference pictures later everything was stored anew once.

In: a key sample as an MP4 file has it. Source: ITU-T H.264, 7.3.1 (units), 7.3.2.3 and D.1.8 (messages).
"""

from __future__ import annotations

from collections.abc import Iterator

_IDR, _SEI = 5, 6  # types of units
_RECOVERY_POINT = 6  # a type of messages
_AHEAD_BYTES = 1 << 12  # of a message that are looked at
_MOST_BITS = 16  # of a count


def recovery_pictures(sample: memoryview, config: bytes) -> int:
    """Returns the reference pictures after a key sample until pictures are whole; 0 = it is whole itself.

    Args:
        config: the content of the box ``avcC``.
    """
    for unit in _units(sample, 1 + (config[4] & 3) if len(config) > 4 else 4):
        kind = unit[0] & 31
        if kind == _IDR:
            return 0
        if kind == _SEI:
            for message, content in _messages(bytes(unit[1:_AHEAD_BYTES]).replace(b"\0\0\3", b"\0\0")):
                if message == _RECOVERY_POINT:
                    return _count(content)
    return 0


def _units(sample: memoryview, width: int) -> Iterator[memoryview]:
    at = 0
    while at + width < len(sample):
        size = int.from_bytes(sample[at : at + width], "big")
        at += width
        if size:
            yield sample[at : at + size]
        at += size


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields types and contents."""
    at = 0
    while at + 2 < len(data):
        numbers = []
        for _ in range(2):
            number = 0
            while at < len(data) and data[at] == 255:
                number, at = number + 255, at + 1
            if at == len(data):
                return
            numbers.append(number + data[at])
            at += 1
        kind, size = numbers
        yield kind, data[at : at + size]
        at += size


def _count(content: bytes) -> int:
    """Returns the Exp-Golomb code with which a message begins."""
    bits = "".join(f"{byte:08b}" for byte in content[:5])
    zeros = len(bits) - len(bits.lstrip("0"))
    return int(bits[zeros : 2 * zeros + 1], 2) - 1 if zeros <= _MOST_BITS and len(bits) > 2 * zeros else 0
