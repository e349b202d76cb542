"""The layers and rooms of docs/explanation/architecture.md, read from the includes of csrc and tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.circles import in_circles

pytestmark = pytest.mark.xdist_group("layering")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "csrc", ROOT / "tools")

MAY_INCLUDE = {
    "core": {"core"},
    "codec": {"codec", "core"},
    "transport": {"transport", "core"},
    "collective": {"collective", "codec", "transport", "core"},
    "binding": {"binding", "collective", "codec", "transport", "core"},
    "emulator": {"emulator", "core"},
    "link_bench": {"link_bench", "transport", "core"},
}
# The folders of each layer ("": its own), the lowest first. One may include itself, and those of its layer that stand
# in a line before its own.
ROOMS = {
    "core": (("",),),
    "codec": (
        ("spec", "simd"),
        ("entropy/huffman",),
        ("entropy",),
        ("frames",),
        ("quantizers/cast",),
        ("quantizers/block",),
        ("quantizers/dead_zone", "quantizers/lossless", "quantizers/select"),
        ("quantizers/loco",),
        ("quantizers/top_k",),
        ("quantizers",),
        ("payload",),
        ("cuda", "delta"),
    ),
    "transport": (("wire",), ("io", "mux"), ("link",), ("rdma",), ("", "rdma/ucx"), ("mail",)),
    "collective": (("policy",), ("layout",), ("sums", "outer"), ("run",), ("cuda",)),
    "binding": (("torch", "operation"), ("device",), ("device/cuda", "tensors"), ("calls",), ("module",)),
    "emulator": (("",),),
    "link_bench": (("",),),
}
ROW_OF = {
    f"{layer}/{room}".rstrip("/"): row
    for layer, rows in ROOMS.items()
    for row, rooms in enumerate(rows)
    for room in rooms
}
# Of libraries that are neither C++'s nor Linux's; the binding may also use torch and its pybind11.
MAY_USE = {
    "codec": ("cuda", "zstd"),
    "transport": ("openssl/", "ucp/", "ucs/"),
    "link_bench": ("openssl/",),
    "binding": ("cuda",),
}
TORCH = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h$")
MOST_FILES_WITH_TORCH = 5
# C++ headers have no suffix; what else a layer may take from the compiler, libc and the kernel.
PLATFORM = re.compile(
    r"[a-z_]+$|(sys|linux|net|netinet|arpa|asm)/[a-z_0-9]+\.h$|[a-z]*intrin\.h$|(cpuid|arm_neon|arm_acle)\.h$"
    r"|sanitizer/[a-z_]+\.h$|(unistd|getopt|poll|fcntl|sched|pthread|signal|netdb|malloc|dirent|dlfcn|ifaddrs|spawn|cxxabi)\.h$"
)


def room_of(file: Path) -> str:
    (folder,) = (folder for folder in FOLDERS if file.is_relative_to(folder))
    return file.relative_to(folder).parent.as_posix()


def sources(*suffixes: str) -> list[Path]:
    return sorted(file for folder in FOLDERS for file in folder.rglob("*") if file.suffix in suffixes)


def includes(text: str) -> Iterator[tuple[str, str]]:
    """(delimiter, path) of each include."""
    yield from re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', text, re.MULTILINE)


def forbidden_include(room: str, delimiter: str, path: str) -> bool:
    layer = room.split("/")[0]
    if TORCH.match(path):
        return layer != "binding" or room == "binding/operation"
    if delimiter == '"':
        other = path.rpartition("/")[0]
        if other not in ROW_OF or other.split("/")[0] not in MAY_INCLUDE[layer]:
            return True
        return other.split("/")[0] == layer and other != room and ROW_OF[other] >= ROW_OF[room]
    return not PLATFORM.match(path) and not path.startswith(MAY_USE.get(layer, ("\0",)))


def headers_included(file: Path) -> set[Path]:
    named = [path for delimiter, path in includes(file.read_text()) if delimiter == '"']
    return {folder / path for path in named for folder in FOLDERS if (folder / path).exists()}


def test_include_of_every_source_is_allowed_in_its_layer_and_room() -> None:
    bad = [
        f"{file.relative_to(ROOT)} includes {path}"
        for file in sources(".h", ".cc", ".cu", ".cuh")
        for delimiter, path in includes(file.read_text())
        if forbidden_include(room_of(file), delimiter, path)
    ]
    assert not bad


def test_include_checker_reads_every_room_and_layer() -> None:
    assert {room_of(file) for file in sources(".h", ".cc", ".cu")} == set(ROW_OF)
    assert set(ROOMS) == set(MAY_INCLUDE)


def builds(lists: str, name: str) -> bool:
    """Whether a CMakeLists.txt whose text that is names a source of its folder or below, by itself, by a pattern of its
    own folder, or with a variable in it (such as a level of CPU)."""
    words: list[str] = re.findall(r"[\w./*${}]+\.(?:cc|cu)\b", lists)
    patterns = (re.escape(re.sub(r"\$\{\w+\}", "*", word)).replace(r"\*", r"\w+") for word in words)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def test_each_source_is_built() -> None:
    """A module whose CUDA parts lack one is linked, and does not load: here no machine would show it."""
    lists = {path.parent: path.read_text() for folder in FOLDERS for path in folder.rglob("CMakeLists.txt")}
    sources = [path for folder in FOLDERS for kind in ("cc", "cu") for path in folder.rglob(f"*.{kind}")]
    assert len(sources) > 150
    left_out = [
        str(source.relative_to(ROOT))
        for source in sources
        if not any(
            folder in lists and builds(lists[folder], source.relative_to(folder).as_posix())
            for folder in source.parents
        )
    ]
    assert not left_out
    assert not builds("geocomm_layer(a SOURCES one.cc two.cu)", "three.cu")
    assert builds("file(GLOB sources *.cc *.cu)", "three.cu")
    assert not builds("file(GLOB sources *.cc *.cu)", "below/three.cu")


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("core", '#include "codec/frames/codec.h"'),
        ("codec", '#include "transport/wire/wire.h"'),
        ("codec", "#include <openssl/ssl.h>"),
        ("transport", '#  include "codec/frames/codec.h"'),
        ("collective", "#include <torch/extension.h>"),
        ("collective", '#include "binding/calls/geo_work.h"'),
        ("core", "#include <gtest/gtest.h>"),
        ("emulator", '#include "transport/io/socket.h"'),
        ("transport/wire", '#include "transport/io/socket.h"'),
        ("transport/mux", '#include "transport/io/io_loop.h"'),
        ("transport/link", '#include "transport/channel.h"'),
        ("transport", '#include "transport/rdma/ucx/ucx_link.h"'),
        ("codec/quantizers/loco", '#include "codec/quantizers/top_k/top_k_format.h"'),
        ("collective/policy", '#include "collective/layout/topology.h"'),
        ("binding/operation", '#include "binding/calls/geo_work.h"'),
        ("binding/operation", "#include <c10/core/Stream.h>"),
        ("transport", '#include "transport/new_room/file.h"'),
        ("transport", '#include "wire.h"'),
    ],
)
def test_forbidden_include_is_found(room: str, line: str) -> None:
    ((delimiter, path),) = includes(line)
    assert forbidden_include(room, delimiter, path)


def test_headers_include_each_other_in_no_circle() -> None:
    assert not in_circles({file: headers_included(file) for file in sources(".h", ".cuh")})


THREAD_STARTED = re.compile(
    r"std::(j?thread|async)\s*[({]|std::j?thread \w+[({]\[|pthread_create\s*\(|threads_?\.emplace_back\([^)\s]"
)


def test_threads_are_started_in_one_place_which_says_what_to_do_where_there_are_none() -> None:
    starts = {
        room_of(file) + "/" + file.name for file in sources(".cc", ".h") if THREAD_STARTED.search(file.read_text())
    }
    assert starts == {"core/thread.cc"}


@pytest.mark.parametrize(
    "line",
    [
        "std::thread([&] { run(); }).detach();",
        "  thread_ = std::thread{[this] { run(); }};",
        "std::thread reader([&] { read(); });",
        "  threads_.emplace_back([this] { send(); });",
        "auto later = std::async(std::launch::async, work);",
        "if (pthread_create(&id, nullptr, run, nullptr) != 0) return;",
    ],
)
def test_start_of_a_thread_is_found(line: str) -> None:
    assert THREAD_STARTED.search(line)


def test_torch_headers_are_included_by_few_files() -> None:
    users = [
        file.relative_to(ROOT)
        for file in sources(".h", ".cc", ".cu")
        if any(TORCH.match(path) for _, path in includes(file.read_text()))
    ]
    assert 1 <= len(users) <= MOST_FILES_WITH_TORCH, users


def test_instructions_of_one_architecture_stand_in_files_of_a_level_or_behind_a_guard() -> None:
    """What every architecture compiles has no other's intrinsics: a build for arm64 would end there."""
    of_a_level = re.compile(r"_(?:avx|avx2|avx512|neon)\.(?:h|cc)$")
    intrinsics = re.compile(
        r"#include <(?:\w*mmintrin|immintrin|cpuid|arm_\w+)\.h>|\b_(?:mm\d*|tzcnt|blsr|bzhi|p(?:dep|ext))_\w+\("
    )
    unguarded: list[str] = []
    for file in sources(".h", ".cc"):
        if of_a_level.search(file.name):
            continue
        guards: list[bool] = []  # whether each condition around a line names what a processor has
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.match(r"#if", line):
                guards.append(bool(re.search(r"__x86_64__|__SSE2__|__aarch64__|GEOCOMM_CRC32_TARGET", line)))
            elif line.startswith("#endif"):
                guards.pop()
            elif intrinsics.search(line.split("//")[0]) and not any(guards):
                unguarded.append(f"{file.relative_to(ROOT)}:{number}")
    assert not unguarded
