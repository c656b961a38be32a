"""Places queens on a board by trying: recursion, small integers."""


def place(size: int, columns: int, down: int, up: int) -> int:
    """Count the ways to fill the rows that are left; bits say what is taken."""
    full = (1 << size) - 1
    if columns == full:
        return 1
    ways, free = 0, full & ~(columns | down | up)
    while free:
        queen = free & -free
        free ^= queen
        ways += place(size, columns | queen, (down | queen) << 1 & full, (up | queen) >> 1)
    return ways


print(place(12, 0, 0, 0))
