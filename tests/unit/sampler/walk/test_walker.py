"""Walks through code that is laid out by hand."""

from __future__ import annotations

import random

import pytest

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.walk.memory import PAGE_BYTES, WalkMemory
from memsampd.sampler.walk.state import RAX, RCX, RDI, RSI, RSP, THREAD_AREA, plus
from memsampd.sampler.walk.walker import Walked, Walker

CODE, DATA, STACK = 0x400000, 0x10000, 0x20000
FOREVER = 1e18


class Machine:
    """Some pages of memory, and code in one of them."""

    def __init__(self, code: str) -> None:
        self.pages = {
            CODE: bytearray(PAGE_BYTES),
            DATA: bytearray(PAGE_BYTES),
            STACK: bytearray(PAGE_BYTES),
        }
        self.write(code)
        self.registers = [0] * 16
        self.registers[RSP] = STACK + 2048

    def write(self, code: str) -> None:
        data = bytes.fromhex(code)
        self.pages[CODE][: len(data)] = data

    def read(self, address: int, size_bytes: int) -> bytes:
        page = self.pages.get(address & -PAGE_BYTES)
        at = address % PAGE_BYTES
        return b"" if page is None else bytes(page[at : at + size_bytes])

    def walk(self, most: int = 100, walker: Walker | None = None) -> Walked:
        walker = walker or Walker(self.read, random.Random(1))
        return walker.walk(CODE, self.registers, most, FOREVER)


def test_a_loop_over_an_array() -> None:
    # mov rdx, [rdi]; add rdi, 8; cmp rdi, rsi; jne; ud2
    machine = Machine("488b17 4883c708 4839f7 75f4 0f0b".replace(" ", ""))
    machine.registers[RDI], machine.registers[RSI] = DATA, DATA + 80
    walked = machine.walk()
    assert [row[1] for row in walked.rows] == [DATA + 8 * i for i in range(10)]
    assert walked.end is BurstEnd.UNSUPPORTED
    assert walked.code_times[CODE] == 10
    assert walked.guesses == 0
    begun, _, last = walked.registers
    assert last[RDI] - begun[RDI] == 80


def test_moments_of_a_walk_lie_on_a_line() -> None:
    machine = Machine("488b17 4883c708 ebf7".replace(" ", ""))  # mov; add; jmp
    machine.registers[RDI] = DATA
    walked = machine.walk(100)
    assert walked.end is BurstEnd.FULL
    assert len(walked.rows) == 100
    assert walked.shares == (0.0, 0.5, 1.0)
    steps = [registers[RDI] - DATA for registers in walked.registers]
    assert steps == pytest.approx([0, 400, 800], abs=8)


def test_what_memory_says_is_where_a_chase_goes() -> None:
    machine = Machine("488b3f ebfb".replace(" ", ""))  # mov rdi, [rdi]; jmp
    chain = [DATA + 8 * each for each in (3, 17, 5, 200, 0)]
    for at, to in zip(chain, [*chain[1:], chain[0]], strict=True):
        machine.pages[DATA][at - DATA : at - DATA + 8] = to.to_bytes(8, "little")
    machine.registers[RDI] = chain[0]
    assert [row[1] for row in machine.walk(10).rows] == chain * 2


def test_calls_return() -> None:
    # call f; mov [rdi], rax; ud2; f: mov rax, [rsi]; ret
    machine = Machine("e805000000 488907 0f0b 488b06 c3".replace(" ", ""))
    machine.registers[RDI], machine.registers[RSI] = DATA, DATA + 64
    walked = machine.walk()
    told = [(address, is_write) for _, address, _, is_write in walked.rows]
    below = STACK + 2040
    assert told == [(below, True), (DATA + 64, False), (below, False), (DATA, True)]


def test_a_walk_sees_its_own_stores() -> None:
    # mov qword [rdi], 2000; mov rdx, [rdi]; mov rcx, [rdi+rdx]; ud2
    machine = Machine("48c707d0070000 488b17 488b0c17 0f0b".replace(" ", ""))
    machine.registers[RDI] = DATA
    assert [row[1] for row in machine.walk().rows] == [DATA, DATA, DATA + 2000]
    assert machine.pages[DATA] == bytearray(PAGE_BYTES)


def test_what_is_not_known_is_not_told() -> None:
    # cvttsd2si rax, xmm0; mov rcx, [rax]; mov rdx, [rdi]; ud2
    machine = Machine("f2480f2cc0 488b08 488b17 0f0b".replace(" ", ""))
    machine.registers[RDI], machine.registers[RAX] = DATA, DATA + 8
    walked = machine.walk()
    assert [row[1] for row in walked.rows] == [DATA]
    assert walked.unknown_rows == 1
    assert walked.registers[2][RCX] == walked.registers[0][RCX]  # as if it had not advanced


def test_a_walk_that_has_lost_its_way_ends() -> None:
    machine = Machine("f2480f2cc0 488b08 ebfb".replace(" ", ""))  # cvttsd2si; mov rcx, [rax]; jmp
    walked = machine.walk(4000)
    assert walked.end is BurstEnd.UNREADABLE
    assert not walked.rows


def test_thread_local_words_are_told_apart() -> None:
    # mov rax, fs:[0x10]; mov rcx, fs:[0x18]; ud2
    machine = Machine("64488b042510000000 64488b0c2518000000 0f0b".replace(" ", ""))
    first, second = (row[1] for row in machine.walk().rows)
    assert first >= THREAD_AREA
    assert second - first == 8


def test_thread_local_words_are_where_the_thread_has_them() -> None:
    # mov rax, fs:[0x10]; mov rcx, fs:[-8]; mov rdx, [rax]; ud2
    machine = Machine("64488b042510000000 64488b0c25f8ffffff 488b10 0f0b".replace(" ", ""))
    area = DATA + 1024
    machine.pages[DATA][1024 + 16 : 1024 + 24] = (DATA + 8).to_bytes(8, "little")
    walker = Walker(machine.read, random.Random(1))
    walked = walker.walk(CODE, machine.registers, 100, FOREVER, area)
    assert [row[1] for row in walked.rows] == [area + 16, area - 8, DATA + 8]


def test_frames_are_taken_to_be_whole() -> None:
    # sub rdx, fs:[0x28]; jne to nowhere; mov rax, [rdi]; ud2
    machine = Machine("64482b142528000000 7510 488b07 0f0b".replace(" ", ""))
    machine.registers[RDI] = DATA
    walked = machine.walk()
    assert walked.guesses == 0
    assert [row[1] for row in walked.rows][1:] == [DATA]


def test_jumps_that_cannot_be_known_are_guessed_and_counted() -> None:
    # ucomisd xmm0, xmm1; mov rax, [rdi]; ja back to the mov; ud2
    machine = Machine("660f2ec1 488b07 77fb 0f0b".replace(" ", ""))
    machine.registers[RDI] = DATA
    walked = machine.walk(1000)
    assert walked.guesses == len(walked.rows) > 0


def elements_to_other_lines(address: int, size: int, count: int) -> list[int]:
    """Addresses of those that touch a line which the one before did not touch."""
    found, before = [], set[int]()
    for at in range(address, address + count * size, size):
        lines = {at // 64, (at + size - 1) // 64}
        if not lines <= before:
            found.append(at)
        before = lines
    return found


@pytest.mark.parametrize("offset", [0, 4, 60, 61])
def test_repeated_stores_count_line_by_line(offset: int) -> None:
    machine = Machine("f348ab 4889c8 48ffc1 f3aa 488b07 0f0b".replace(" ", ""))
    # rep stosq; mov rax, rcx; inc rcx; rep stosb; mov rax, [rdi]; ud2
    start, count = DATA + offset, 20
    machine.registers[RDI], machine.registers[RCX] = start, count
    walked = machine.walk()
    end = start + 8 * count
    expected = [*elements_to_other_lines(start, 8, count), end, end + 1]
    assert [row[1] for row in walked.rows] == expected
    assert walked.registers[2][RCX] == 0
    assert walked.registers[2][RDI] == end + 1
    assert walked.repeats == count + 1
    # The mov and the inc make no reference; a repeated instruction is one for each of its own.
    assert walked.code_times.total() == len(expected) + 2


def test_what_repeated_stores_leave_is_not_known() -> None:
    machine = Machine("f348ab 488b47f8 488b18 0f0b".replace(" ", ""))
    # rep stosq; mov rax, [rdi - 8]; mov rbx, [rax]; ud2
    machine.registers[RDI], machine.registers[RCX] = DATA, 20
    walked = machine.walk()
    assert walked.unknown_rows == 1


@pytest.mark.parametrize("offset", [0, 40, 63])
def test_repeated_moves_count_line_by_line(offset: int) -> None:
    machine = Machine("f3a4 0f0b".replace(" ", ""))  # rep movsb; ud2
    machine.registers[RSI], machine.registers[RDI] = DATA, DATA + 1000 + offset
    machine.registers[RCX] = 300
    walked = machine.walk()
    loads = elements_to_other_lines(DATA, 1, 300)
    stores = elements_to_other_lines(DATA + 1000 + offset, 1, 300)
    assert [row[1] for row in walked.rows if not row[3]] == loads
    assert [row[1] for row in walked.rows if row[3]] == stores
    assert walked.repeats == 300
    # In the order of the elements, each of which is loaded before it is stored.
    order = [(row[1] - (DATA + 1000 + offset if row[3] else DATA), row[3]) for row in walked.rows]
    assert order == sorted(order)
    assert walked.code_times.total() == len({element for element, _ in order})


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("488b070f05", BurstEnd.SYSCALL),
        ("488b07ffe2", BurstEnd.FAULT),  # jmp rdx, to 0
        ("488b070f0b", BurstEnd.UNSUPPORTED),
        ("488b07f3a6", BurstEnd.UNSUPPORTED),  # repe cmpsb
        ("488b07fdf3a4", BurstEnd.UNSUPPORTED),  # std; rep movsb
        ("488b07e1fb", BurstEnd.UNSUPPORTED),  # loope
        ("488b0731d2f7f2", BurstEnd.FAULT),  # div by zero
    ],
)
def test_ends(code: str, end: BurstEnd) -> None:
    machine = Machine(code)
    machine.registers[RDI] = DATA
    walked = machine.walk()
    assert walked.end is end
    assert len(walked.rows) == 1


@pytest.mark.parametrize(
    "code",
    [
        "0f6f07 0fd7c0",  # movq mm0, [rdi]; pmovmskb eax, mm0
        "0fef07",  # pxor mm0, [rdi]
        "62f17d287407",  # vpcmpeqb k0, ymm0, [rdi]
    ],
)
def test_registers_that_are_not_followed_do_not_end_it(code: str) -> None:
    machine = Machine(f"{code} 488b5708 0f0b".replace(" ", ""))  # mov rdx, [rdi + 8]
    machine.registers[RDI] = DATA
    walked = machine.walk()
    assert walked.end is BurstEnd.UNSUPPORTED  # at its end
    assert [row[1] for row in walked.rows] == [DATA, DATA + 8]


@pytest.mark.parametrize("code", ["65488b042528000000", "d7"])  # mov rax, gs:[40]; xlat
def test_addresses_that_are_not_followed_are_not_told(code: str) -> None:
    machine = Machine(f"{code} 488b5708 0f0b".replace(" ", ""))
    machine.registers[RDI] = DATA
    walked = machine.walk()
    assert [row[1] for row in walked.rows][-1] == DATA + 8
    assert DATA not in {row[1] for row in walked.rows}
    assert len(walked.rows) <= 2


def test_data_are_no_code() -> None:
    """A stack that has changed since the sample has a walk return to anywhere."""
    machine = Machine("c3")  # ret
    machine.pages[STACK][2048:2056] = DATA.to_bytes(8, "little")
    walker = Walker(machine.read, random.Random(1), lambda address: address >= CODE)
    walked = machine.walk(walker=walker)
    assert (walked.end, len(walked.rows)) == (BurstEnd.FAULT, 1)
    assert walked.code_times == {CODE: 1}


def test_changed_code_is_read_again() -> None:
    machine = Machine("488b07 0f0b".replace(" ", ""))  # mov rax, [rdi]
    machine.registers[RDI] = DATA
    walker = Walker(machine.read, random.Random(1))
    assert [row[1] for row in machine.walk(walker=walker).rows] == [DATA]
    machine.write("488b4740 0f0b".replace(" ", ""))  # mov rax, [rdi+64]
    assert [row[1] for row in machine.walk(walker=walker).rows] == [DATA + 64]


def test_changed_code_is_read_again_where_an_instruction_before_it_was_read_first() -> None:
    """The last bytes of a page are read with the first ones of the next."""
    machine = Machine("e9f90f0000")  # jmp to the last two bytes of the page: nops
    machine.pages[CODE + PAGE_BYTES] = bytearray(bytes.fromhex("488b07 0f0b").ljust(PAGE_BYTES))
    machine.pages[CODE][-2:] = b"\x90\x90"
    machine.registers[RDI] = DATA
    walker = Walker(machine.read, random.Random(1))
    assert [row[1] for row in machine.walk(walker=walker).rows] == [DATA]
    machine.pages[CODE][100] = 1  # else it need not be read again
    machine.pages[CODE + PAGE_BYTES][:6] = bytes.fromhex("488b4740 0f0b")
    assert [row[1] for row in machine.walk(walker=walker).rows] == [DATA + 64]


def test_what_is_forgotten_is_worked_out_again() -> None:
    # mov rdx, [rdi]; mov rdx, [rdi + 8]; mov rdx, [rdi + 16]; ud2
    machine = Machine("488b17 488b5708 488b5710 0f0b".replace(" ", ""))
    machine.registers[RDI] = DATA
    walker = Walker(machine.read, random.Random(1), most_steps=2)
    first = machine.walk(walker=walker)
    assert [row[1] for row in first.rows] == [DATA, DATA + 8, DATA + 16]
    assert machine.walk(walker=walker) == first


def test_time_is_limited() -> None:
    machine = Machine("488b07 ebfb".replace(" ", ""))
    machine.registers[RDI] = DATA
    walked = Walker(machine.read, random.Random(1)).walk(CODE, machine.registers, 4000, 0.0)
    assert walked.end is BurstEnd.DEADLINE


def test_code_with_few_accesses_ends_short() -> None:
    walked = Machine("ebfe").walk()  # jmp to itself
    assert walked.end is BurstEnd.DEADLINE
    assert walked.detail == "code with few accesses"
    assert walked.rows == []


def test_values_across_pages_and_unknown_words() -> None:
    pages = {0: bytes(PAGE_BYTES), 1: b"\xff" * PAGE_BYTES}
    memory = WalkMemory(lambda address, size: pages.get(address >> 12, b"")[:size])
    assert memory.load(PAGE_BYTES - 2, 4) == 0xFFFF0000
    memory.store(PAGE_BYTES - 2, 4, 0x12345678)
    assert memory.load(PAGE_BYTES - 2, 4) == 0x12345678
    memory.store(PAGE_BYTES - 8, 16, None)
    assert memory.load(PAGE_BYTES - 8, 1) is None
    memory.store(PAGE_BYTES, 8, 7)
    assert (memory.load(PAGE_BYTES, 8), memory.load(PAGE_BYTES - 1, 1)) == (7, None)
    assert memory.load(9 * PAGE_BYTES, 8) is None
    assert plus(None, 1) is None
