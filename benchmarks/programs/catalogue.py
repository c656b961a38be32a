"""The catalogue: compressors, interpreters, JITs, compilers, servers and programs of our own.

Each runs without end (or for a minute at least) and is bound by the CPU. Inputs are generated from
seeds. ``benchmarks/list_programs.py`` prints it; ``scripts/benchmark-tools`` installs the packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from programs.preparing import (
    SOURCES,
    WARNINGS,
    c_source,
    compiled,
    compiled_java,
    corpus,
    run,
)
from programs.workload import ANONYMOUS, Launch, Workload

_CORPUS_MIB = 8
_C_FUNCTIONS = 6000
_PYTHON = "/usr/bin/python3"  # not one that happens to be first in the PATH
_FOREVER = "0"

_Launcher = Callable[[Path], Launch]


def _fed(*command: str) -> _Launcher:
    """Read the corpus over and over."""

    def launch(folder: Path) -> Launch:
        data = str(corpus(folder, _CORPUS_MIB))
        return Launch(command, feeder=("sh", "-c", 'while cat "$0"; do :; done', data))

    return launch


def _script(*interpreter: str) -> _Launcher:
    """Run a source of ours by its interpreter; the last word is the source."""
    *head, source = interpreter
    return lambda _: Launch((*head, str(SOURCES / source), _FOREVER))


def _fixed(*command: str) -> _Launcher:
    return lambda _: Launch(command)


def _own(compile_it: Callable[[Path], Path]) -> _Launcher:
    return lambda folder: Launch((str(compile_it(folder)), _FOREVER))


def _strings_static(folder: Path) -> Path:
    return compiled(
        folder, "strings.c", "strings-static", ("gcc", "-O2", "-static", "-no-pie", *WARNINGS)
    )


def _strings_stripped(folder: Path) -> Path:
    flags = ("-O3", "-march=native", "-pie", "-fPIE", "-fcf-protection=full", "-s", *WARNINGS)
    return compiled(folder, "strings.c", "strings-stripped", ("gcc", *flags))


def _threads(folder: Path) -> Path:
    flags = ("-std=c++17", "-O2", "-pthread", *WARNINGS)
    return compiled(folder, "threads.cpp", "threads", ("g++", *flags))


def _exceptions(folder: Path) -> Path:
    flags = ("-std=c++17", "-O2", *WARNINGS)
    return compiled(folder, "exceptions.cpp", "exceptions", ("g++", *flags))


def _blas(folder: Path) -> Path:
    command = ("gfortran", "-O2", "-march=native")
    return compiled(folder, "blas.f90", "blas", command, libraries=("-lopenblas",))


def _go(folder: Path) -> Path:
    caches = {
        "GOCACHE": str(folder / "go-cache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
    }
    command = ("go", "build")
    return compiled(folder, "work.go", "go-work", command, extra_environment=caches)


def _rust(folder: Path) -> Path:
    return compiled(folder, "work.rs", "rust-work", ("rustc", "-O", "--edition=2021"))


def _java(folder: Path) -> Launch:
    kept = compiled_java(folder / "java", "Work.java").parent
    flags = ("-XX:+UseSerialGC", "-Xmx256m", "-Xshare:auto")
    return Launch(("java", *flags, "-cp", str(kept), "Work", _FOREVER))


def _cc1(folder: Path) -> Launch:
    source = str(c_source(folder, _C_FUNCTIONS))
    compiler = run(["gcc", "-print-prog-name=cc1"]).strip()
    return Launch((compiler, "-quiet", "-O2", "-fpreprocessed", source, "-o", "-"))


def _redis(folder: Path) -> Launch:
    server = ("redis-server", "--port", "0", "--unixsocket", "redis.sock", "--save", "")
    asked = ("-c", "4", "-P", "16", "-r", "20000", "-n", "100000", "-q", "-t", "set,get,lpush,zadd")
    wait = "while ! redis-cli -s redis.sock ping; do sleep 0.1; done"
    clean = "redis-cli -s redis.sock flushall"
    ask = f"redis-benchmark -s redis.sock {' '.join(asked)}"
    return Launch(server, client=("sh", "-c", f"{wait}; while {clean} && {ask}; do :; done"))


def _web(folder: Path) -> Launch:
    server = (_PYTHON, str(SOURCES / "web.py"))
    return Launch((*server, "serve", "web.sock"), client=(*server, "ask", "web.sock"))


def _openssl(*algorithm: str) -> _Launcher:
    return _fixed("openssl", "speed", "-seconds", "100000", *algorithm)


def _script_workload(name: str, what: str, code: str, package: str, *interpreter: str) -> Workload:
    return Workload(
        name,
        what,
        code,
        packages=(package,),
        programs=(interpreter[0],),
        endless=_script(*interpreter),
    )


def _own_workload(
    name: str,
    what: str,
    code: str,
    packages: Sequence[str],
    compiler: str,
    compile_it: Callable[[Path], Path],
) -> Workload:
    return Workload(
        name,
        what,
        code,
        packages=packages,
        programs=(compiler,),
        endless=_own(compile_it),
    )


def _compressor(name: str, package: str, code: str, *flags: str) -> Workload:
    return Workload(
        name,
        f"{name} {' '.join(flags)} of mixed data",
        code,
        packages=(package,),
        programs=(name,),
        endless=_fed(name, *flags, "-c"),
    )


_C_STATIC = ("gcc", "libc6-dev")

CATALOGUE: tuple[Workload, ...] = (
    _compressor("xz", "xz-utils", "liblzma.so", "-6", "-T1"),
    _compressor("gzip", "gzip", "/gzip", "-9"),
    _compressor("bzip2", "bzip2", "libbz2.so", "-9"),
    _compressor("zstd", "zstd", "/zstd", "-15", "-T1"),
    Workload(
        "sqlite3",
        "an analytical query on tables in memory",
        "libsqlite3.so",
        packages=("sqlite3",),
        programs=("sqlite3",),
        endless=_fixed("sqlite3", ":memory:", f".read {SOURCES / 'endless.sql'}"),
    ),
    Workload(
        "cc1",
        "gcc -O2 on generated functions",
        "/cc1",
        packages=("gcc",),
        programs=("gcc",),
        endless=_cc1,
    ),
    _script_workload(
        "python3",
        "dictionaries, JSON, patterns and floats in Python",
        "/python3",
        "python3-minimal",
        *(_PYTHON, "-S", "work.py"),
    ),
    Workload(
        "openssl",
        "openssl speed, AES-256-GCM (AVX code)",
        "libcrypto.so",
        packages=("openssl",),
        programs=("openssl",),
        endless=_openssl("-bytes", "16384", "-evp", "aes-256-gcm"),
    ),
    Workload(
        "openssl-rsa",
        "openssl speed, RSA signatures of 2048 bits",
        "libcrypto.so",
        packages=("openssl",),
        programs=("openssl",),
        endless=_openssl("rsa2048"),
    ),
    _script_workload(
        "perl", "words, patterns and sorting in Perl", "/perl", "perl-base", "perl", "work.pl"
    ),
    _script_workload(
        "node", "words, JSON and arrays in V8 (JIT)", ANONYMOUS, "nodejs", "node", "work.js"
    ),
    _script_workload(
        "luajit",
        "words, primes and floats in LuaJIT",
        ANONYMOUS,
        "luajit",
        *("luajit", "work.lua"),
    ),
    Workload(
        "java",
        "maps, matrices and sorting in OpenJDK (JIT)",
        ANONYMOUS,
        packages=("openjdk-17-jdk-headless",),
        programs=("java", "javac"),
        endless=_java,
        warmup_cpu_seconds=2.0,
    ),
    Workload(
        "numpy",
        "products, Fourier transforms, sorting and gathering of arrays",
        "numpy",
        packages=(),
        programs=(sys.executable,),
        endless=_script(sys.executable, "arrays.py"),
        modules=("numpy",),
    ),
    _own_workload(
        "blas",
        "Fortran: products by OpenBLAS, relaxation on a grid",
        "libopenblas",
        ("gfortran", "libopenblas-dev"),
        "gfortran",
        _blas,
    ),
    _own_workload(
        "go", "Go: two goroutines with maps and SHA-256", "/go-work", ("golang-go",), "go", _go
    ),
    _own_workload(
        "rust",
        "Rust: trees, tables, sorting, a heap",
        "/rust-work",
        ("rustc",),
        "rustc",
        _rust,
    ),
    _own_workload(
        "threads", "C++: four threads with tables", "/threads", ("g++",), "g++", _threads
    ),
    _own_workload(
        "exceptions",
        "C++: a parser that throws",
        "/exceptions",
        ("g++",),
        "g++",
        _exceptions,
    ),
    _own_workload(
        "static",
        "C: static, at a fixed address; strings and sorting",
        "/strings-static",
        _C_STATIC,
        "gcc",
        _strings_static,
    ),
    _own_workload(
        "stripped",
        "C: the same, vectorised, position-independent, with endbr64, stripped",
        "/strings-stripped",
        _C_STATIC,
        "gcc",
        _strings_stripped,
    ),
    _script_workload(
        "pipeline",
        "a shell that computes and forks short pipelines",
        "/dash",
        "dash",
        *("dash", "pipeline.sh"),
    ),
    Workload(
        "redis",
        "redis-server under redis-benchmark",
        "/redis-",
        packages=("redis-server", "redis-tools"),
        programs=("redis-server", "redis-benchmark"),
        endless=_redis,
    ),
    Workload(
        "web",
        "a Python HTTP server under load",
        "/python3",
        packages=("python3",),
        programs=(_PYTHON,),
        endless=_web,
    ),
)


def find(names: Sequence[str]) -> list[Workload]:
    """Return the workloads of these names; all if there are none.

    Raises:
        KeyError: a name is unknown.
    """
    by_name = {workload.name: workload for workload in CATALOGUE}
    return [by_name[name] for name in names] if names else list(CATALOGUE)


def packages() -> list[str]:
    """Return the Debian packages that all of them need together, sorted."""
    return sorted({package for workload in CATALOGUE for package in workload.packages})


def lacking_packages() -> list[str]:
    """Return those of workloads of which something is missing, sorted."""
    return sorted({p for workload in CATALOGUE if workload.lacks() for p in workload.packages})
