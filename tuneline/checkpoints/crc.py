"""CRCs of bytes that were read in pieces by several threads: the pieces' own joined, as zlib's crc32_combine does."""

from __future__ import annotations

from functools import lru_cache

#: Polynomials, bits reflected: of zip and zlib, and of Cloud Storage (CRC-32C).
ZIP = 0xEDB88320
CASTAGNOLI = 0x82F63B78
_ONE = 1 << 31  # the polynomial 1


def combine(first: int, second: int, second_length: int, polynomial: int = ZIP) -> int:
    """The CRC of A+B from those of A and B and the length of B in bytes."""
    return _multiply(_shift(second_length, polynomial), first, polynomial) ^ second


@lru_cache(maxsize=4096)
def _shift(length: int, polynomial: int) -> int:
    """x to the power 8 * length, modulo the polynomial: what `length` zero bytes do to a CRC."""
    result, power, exponent = _ONE, 1 << 30, 8 * length  # power: x
    while exponent:
        if exponent & 1:
            result = _multiply(power, result, polynomial)
        power = _multiply(power, power, polynomial)
        exponent >>= 1
    return result


def _multiply(a: int, b: int, polynomial: int) -> int:
    """a times b modulo the polynomial, bits reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (polynomial if b & 1 else 0)
    return product
