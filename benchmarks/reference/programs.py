"""The programs that estimates are judged on: what each runs, on which input, how it is prepared.

All are deterministic, single-threaded, have phases, and run natively for 3 to 8 seconds. Nothing
in them depends on time, so that they do the same under valgrind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from memsampd.demo.program import compile_demo
from reference.inputs import MIB, write_c_source, write_corpus, write_picture

# valgrind hides AVX-512, RTM and FSRM, so glibc takes other string routines there, and starts to
# use rep movsb (an access a line) at other lengths. These settings make it choose natively as
# it does under valgrind, where they change nothing; tests/integration/test_reference.py checks it.
GLIBC_TUNABLES = ":".join(
    (
        "glibc.cpu.hwcaps=-RTM,-AVX512VL,-AVX512BW,-AVX512F,-Prefer_No_VZEROUPPER,"
        "-Avoid_Short_Distance_REP_MOVSB",
        "glibc.cpu.x86_rep_movsb_threshold=0x2000",
        "glibc.cpu.x86_non_temporal_threshold=0x200000",
    )
)

SOURCES = Path(__file__).with_name("programs")
BUILD = Path(__file__).resolve().parents[2] / "build" / "benchmarks"
"""Where programs are built, and run."""


@dataclass(frozen=True, slots=True)
class Program:
    """One reference program.

    Attributes:
        name: names its file in ``data/`` too.
        what: what it is, for the table of the documentation.
        package: Debian package whose version the reference depends on; empty if compiled here.
        executable: what this brings; empty if compiled here.
        prepare: makes what the command needs in a folder (kept from run to run) and returns it.
        held_out: nothing is tuned on it: it is judged only when that is asked for, at the end.
    """

    name: str
    what: str
    package: str
    executable: str
    prepare: Callable[[Path], Sequence[str]]
    held_out: bool = False

    def command(self, folder: Path) -> list[str]:
        """Prepare inputs and executables in this folder and return the command line."""
        folder.mkdir(parents=True, exist_ok=True)
        return [str(part) for part in self.prepare(folder)]


def environment() -> dict[str, str]:
    """Return the environment that programs run in, natively and under valgrind.

    Nothing of the caller's locale or allocator settings reaches them; glibc chooses the same
    string routines in both; strings hash the same in every run of Python and Perl.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GLIBC_TUNABLES": GLIBC_TUNABLES,
        "PYTHONHASHSEED": "0",
        "PERL_HASH_SEED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the features of this CPU by the kernel's names; none where it tells none."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
    return flags[1].split() if flags else []


def copies_alike(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether programs copy natively as they do under valgrind.

    valgrind tells programs of fast repeated moves (ERMS), by which glibc copies from 8 KiB on, on
    CPUs without them too, and no setting adds them natively. There, as on the first AMD EPYCs, such
    copies make two accesses a line natively, and one in the references.
    """
    return "erms" in cpu_features(cpuinfo)


def _corpus(folder: Path, size_mib: int) -> Path:
    return _input(folder / f"corpus-{size_mib}", lambda path: write_corpus(path, size_mib * MIB))


def _input(path: Path, write: Callable[[Path], None]) -> Path:
    if not path.exists():
        unfinished = path.with_suffix(".new")
        write(unfinished)
        unfinished.rename(path)
    return path


def _compiled(folder: Path, name: str) -> Path:
    source, target = SOURCES / f"{name}.c", folder / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        flags = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *flags, "-o", str(target), str(source), "-lm"], check=True)
    return target


def _gzip(folder: Path) -> Sequence[str]:
    return "gzip", "-6", "-c", str(_corpus(folder, 72))


def _bzip2(folder: Path) -> Sequence[str]:
    return "bzip2", "-9", "-c", str(_corpus(folder, 44))


def _xz(folder: Path) -> Sequence[str]:
    return "xz", "-2", "-T1", "-c", str(_corpus(folder, 20))


def _sqlite(folder: Path) -> Sequence[str]:
    return "sqlite3", ":memory:", f".read {SOURCES / 'analytics.sql'}"


def _cc1(folder: Path) -> Sequence[str]:
    source = _input(folder / "generated-190.i", lambda path: write_c_source(path, functions=190))
    asked = subprocess.run(
        ["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True
    )
    return asked.stdout.strip(), "-quiet", "-O2", "-fpreprocessed", str(source), "-o", "/dev/null"


def _python(folder: Path) -> Sequence[str]:
    return "/usr/bin/python3", "-S", str(SOURCES / "workload.py"), "90000", "240000", "4500000"


def _perl(folder: Path) -> Sequence[str]:
    return "perl", str(SOURCES / "workload.pl"), "110000", "3"


def _image(folder: Path) -> Sequence[str]:
    picture = _input(folder / "picture.ppm", lambda path: write_picture(path, 1600, 1200))
    steps = "-median 1 -blur 0x3 -resize 150% -equalize -rotate 30 -despeckle -colors 64"
    return "gm", "convert", str(picture), *steps.split(), "-quality", "95", "png:/dev/null"


def _kernels(folder: Path) -> Sequence[str]:
    return str(compile_demo(folder)), "--rounds", "2", "--scale", "0.25"


def _solver(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "solver")), "128", "64", "40"


def _graph(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "graph")), "19", "60", "60"


def _hashjoin(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "hashjoin")), "19", "22", "28"


def _scripts(folder: Path) -> Sequence[str]:
    return "/usr/bin/python3", "-S", str(SOURCES / "scripts.py"), str(SOURCES / "scripts"), "1"


def _worksets(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "worksets")), "150"


def _pagerank(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "pagerank")), "20", "110"


def _components(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "components")), "11", "20"


def _fft(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "fft")), "20", "8"


def _sorting(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "sorting")), "23", "2"


def _multigrid(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "multigrid")), "128", "10"


def _zstd(folder: Path) -> Sequence[str]:
    return "zstd", "-q", "--single-thread", "-13", "-c", str(_corpus(folder, 20))


def _json(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "json")), "20000", "2"


def _awk(folder: Path) -> Sequence[str]:
    return "mawk", "-f", str(SOURCES / "words.awk"), str(_corpus(folder, 16))


def _tcl(folder: Path) -> Sequence[str]:
    return "tclsh8.6", str(SOURCES / "tables.tcl"), "100000", "18"


def _digits(folder: Path) -> Sequence[str]:
    return "bc", "-l", "-q", str(SOURCES / "digits.bc")


def _bodies(folder: Path) -> Sequence[str]:
    return str(_compiled(folder, "bodies")), "400000", "12"


PROGRAMS: tuple[Program, ...] = (
    Program("gzip", "compressing 72 MiB of mixed data", "gzip", "gzip", _gzip),
    Program("bzip2", "compressing 44 MiB of mixed data", "bzip2", "bzip2", _bzip2),
    Program("xz", "compressing 20 MiB of mixed data", "xz-utils", "xz", _xz),
    Program("sqlite3", "analytical queries, 750,000 rows in memory", "sqlite3", "sqlite3", _sqlite),
    Program("cc1", "gcc -O2 on 190 generated functions", "cpp-12", "gcc", _cc1),
    Program(
        "python3",
        "floats, JSON and dictionaries in Python",
        "python3.11-minimal",
        "/usr/bin/python3",
        _python,
    ),
    Program("perl", "patterns, hashes and sorting of text in Perl", "perl-base", "perl", _perl),
    Program("image", "a picture filtered, scaled, turned, reduced", "graphicsmagick", "gm", _image),
    Program("kernels", "the bundled example, two rounds", "", "", _kernels),
    Program("solver", "multigrid, conjugate gradients, transforms", "", "", _solver),
    Program("graph", "searches and PageRank, 8 M edges", "", "", _graph),
    Program("hashjoin", "joins of 0.5 M with 4 M rows", "", "", _hashjoin),
    Program(
        "scripts",
        "six unlike scripts in one interpreter",
        "python3.11-minimal",
        "/usr/bin/python3",
        _scripts,
    ),
    Program("worksets", "one loop over five working sets", "", "", _worksets),
    Program("pagerank", "edges read and sorted, then ranked", "", "", _pagerank),
    Program("fft", "transforms of a long signal and its pieces", "", "", _fft),
    Program("sorting", "64 MiB sorted in four ways", "", "", _sorting),
    Program("zstd", "compressing 20 MiB of mixed data, hard", "zstd", "zstd", _zstd),
    Program("components", "parts of a grid: unions, labels, searches", "", "", _components),
    Program("multigrid", "full multigrid, uneven diffusion", "", "", _multigrid),
    Program("json", "documents parsed, searched, summed", "", "", _json),
    Program("awk", "words and pairs of words of 16 MiB", "mawk", "mawk", _awk),
    Program(
        "tcl", "rows grouped, sorted, matched in Tcl", "tcl8.6", "tclsh8.6", _tcl, held_out=True
    ),
    Program("digits", "2,800 digits of pi", "bc", "bc", _digits, held_out=True),
    Program("bodies", "bodies that attract each other, by a tree", "", "", _bodies, held_out=True),
)


TOOLS = {"valgrind": "valgrind", "cc": "gcc"}
"""What makes references besides: program, package."""


def packages() -> list[str]:
    """Return the Debian packages that programs and their references need, sorted."""
    return sorted({*TOOLS.values(), *(each.package for each in PROGRAMS if each.package)})


def lacking_packages() -> list[str]:
    """Return those of which something is missing, sorted."""
    wanted = {each.executable: each.package for each in PROGRAMS if each.package} | TOOLS
    path = environment()["PATH"]
    return sorted({wanted[name] for name in wanted if shutil.which(name, path=path) is None})


def judged(names: Sequence[str] = (), with_held_out: bool = False) -> list[Program]:
    """Return the programs of these names that may be judged; all if there are none.

    Raises:
        KeyError: a name is unknown.
        ValueError: one named is held out.
    """
    found = find(names)
    held_out = [program.name for program in found if program.held_out and not with_held_out]
    if names and held_out:
        raise ValueError(f"held out until the end: {', '.join(held_out)} (--held-out)")
    return [program for program in found if program.name not in held_out]


def find(names: Sequence[str]) -> list[Program]:
    """Return the programs of these names; all if there are none.

    Raises:
        KeyError: a name is unknown.
    """
    by_name = {program.name: program for program in PROGRAMS}
    return [by_name[name] for name in names] if names else list(PROGRAMS)
