"""CRC-32 of bytes that were read in pieces by several threads: the pieces' own CRCs joined, as zlib's crc32_combine does."""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # the polynomial 1, bits reflected


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC-32 of A+B from those of A and B and the length of B in bytes."""
    return _multiply(_shift(second_length), first) ^ second


@lru_cache(maxsize=4096)
def _shift(length: int) -> int:
    """x to the power 8 * length, modulo the CRC polynomial: what `length` zero bytes do to a CRC."""
    result, power, exponent = _ONE, 1 << 30, 8 * length  # power: x
    while exponent:
        if exponent & 1:
            result = _multiply(power, result)
        power = _multiply(power, power)
        exponent >>= 1
    return result


def _multiply(a: int, b: int) -> int:
    """a times b modulo the CRC polynomial, bits reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
