"""Finds primes by crossing out: long slices of one big array."""

LIMIT = 12_000_000
TIMES = 5

for _ in range(TIMES):
    sieve = bytearray([1]) * (LIMIT + 1)
    for number in range(2, int(LIMIT**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, LIMIT + 1, number)))
print(sum(sieve), sum(number for number in range(2, LIMIT, 3) if sieve[number]))
