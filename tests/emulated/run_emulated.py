#!/usr/bin/env python3
"""Runs the C++ tests of core, codec and collective on an emulated Ice Lake, for machines without AVX-512.

See README.md. Prints the tests that ran; exits with 1 if one failed or did not run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "emulated"
PROGRAM_ADDRESS = "0x10000000"  # kProgram in kernel.cc
# There are no threads, files or sockets in there.
FILTERS = {
    "core": "CpuLevel.*:Crc32c.*:Half.*:*HalfFormats.*:Philox.*",
    "codec": "*level*:*Level*:*scalar*:*Golden*",
    "collective": "-Exchange*",
}
COMMANDS = {
    "bochs": "bochs",
    "grub-mkrescue": "grub-common",
    "xorriso": "xorriso",
    "mformat": "mtools",
}
FILES = {
    "/usr/share/bochs/BIOS-bochs-latest": "bochsbios",
    "/usr/share/bochs/VGABIOS-lgpl-latest": "bochs",
    "/usr/lib/grub/i386-pc/multiboot.mod": "grub-pc-bin",
    "/usr/include/zstd.h": "libzstd-dev",
}
KERNEL_FLAGS = [
    "-std=c++20",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fno-pic",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-threadsafe-statics",
    "-fno-asynchronous-unwind-tables",
]
BOCHS_CONFIG = Template("""\
config_interface: textconfig
display_library: rfb, options="timeout=0"
memory: guest=2032, host=2032
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=corei7_icelake_u, count=1, ips=100000000, reset_on_triple_fault=0, ignore_bad_msrs=1
clock: sync=none
ata0-master: type=cdrom, path=$image, status=inserted
boot: cdrom
port_e9_hack: enabled=1
log: $log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
speaker: enabled=0
plugin_ctrl: unmapped=1, biosdev=0, speaker=0, extfpuirq=0, parallel=0, serial=0, gameport=0, iodebug=0
""")


def missing_packages() -> list[str]:
    missing = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    missing |= {package for file, package in FILES.items() if not Path(file).exists()}
    return sorted(missing)


def call(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"emulated: {command[0]} failed\n{done.stdout}{done.stderr}")


def build_programs(layers: list[str]) -> None:
    call(
        *("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DGEOCOMM_TESTS=ON", "-DGEOCOMM_TOOLS=OFF"),
        f"-DCMAKE_EXE_LINKER_FLAGS=-static -Wl,-Ttext-segment={PROGRAM_ADDRESS}",
        "-DGEOCOMM_ZSTD_LIBRARY=-l:libzstd.a",
        "-DOPENSSL_USE_STATIC_LIBS=ON",
    )
    call("cmake", "--build", BUILD, "--target", *(f"test_{layer}" for layer in layers))


def build_image(programs: dict[str, str]) -> Path:
    """The CD image that boots the kernel with these programs, given as layer: filter."""
    tree = BUILD / "image"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "boot" / "grub").mkdir(parents=True)
    call("g++", *KERNEL_FLAGS, "-c", HERE / "kernel.cc", "-o", BUILD / "kernel.o")
    call("gcc", "-c", HERE / "entry.S", "-o", BUILD / "entry.o")
    call("ld", "-n", "-static", "-Ttext-segment=0x100000", "-e", "_start", "-o", tree / "boot" / "kernel",
         BUILD / "entry.o", BUILD / "kernel.o")  # fmt: skip
    menu = ["multiboot /boot/kernel"]
    for layer, chosen in programs.items():
        name = f"test_{layer}"
        call("strip", "-o", tree / "boot" / name, BUILD / "tests" / "cpp" / name)
        menu.append(f"module /boot/{name} {name} --gtest_filter={chosen}")
    (tree / "boot" / "grub" / "grub.cfg").write_text("\n".join([*menu, "boot", ""]))
    image = BUILD / "boot.iso"
    call("grub-mkrescue", "-d", "/usr/lib/grub/i386-pc", "-o", image, tree)
    return image


def emulate(image: Path, timeout_secs: float, verbose: bool) -> list[str]:
    """The lines that the programs wrote."""
    config = BUILD / "bochsrc"
    config.write_text(BOCHS_CONFIG.substitute(image=image, log=BUILD / "bochs.log"))
    # Debian's Bochs has its debugger built in, which waits for commands.
    commands = BUILD / "debugger_commands"
    commands.write_text("c\nq\n")
    process = subprocess.Popen(
        ["stdbuf", "-oL", "bochs", "-q", "-f", config, "-rc", commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(timeout_secs, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if verbose or (line.startswith("[  ") and line.endswith("ms)\n")):
            print(line, end="", flush=True)
    timer.cancel()
    lines.append(f"emulated: Bochs ended with status {process.wait()}")
    return lines


def report(lines: list[str], layers: list[str]) -> bool:
    """Whether all of it ran and passed."""
    statuses = [line.rsplit(" ", 1)[1] for line in lines if line.startswith("emulated: exit status ")]
    passed = [found[1] for line in lines if (found := re.match(r"\[       OK \] (\S+)", line))]
    skipped = [found[1] for line in lines if (found := re.match(r"\[  SKIPPED \] (\S+) \(", line))]
    failed = [found[1] for line in lines if (found := re.match(r"\[  FAILED  \] (\S+) \(\d+ ms", line))]
    complete = statuses == ["0"] * len(layers) and "emulated: all programs were run" in lines
    if failed or not complete:
        print("\n".join(lines[-80:]))
        print(f"emulated: FAILED; exit statuses {statuses} of {layers}; failed tests: {failed or 'none by name'}")
        return False
    print(f"emulated: {len(passed)} tests passed at CPU level avx512 ({', '.join(layers)}); skipped: {skipped}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", help=f"of {', '.join(FILTERS)}; default: all")
    parser.add_argument("--filter", help="a GoogleTest filter, in place of the defaults")
    parser.add_argument("--timeout-secs", type=float, default=1800.0)
    parser.add_argument("--verbose", action="store_true", help="print what the tests print")
    arguments = parser.parse_args()
    layers = arguments.layers or list(FILTERS)
    if unknown := set(layers) - set(FILTERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if missing := missing_packages():
        sys.exit(f"emulated: not installed; do  apt-get install {' '.join(missing)}")
    print("emulated: building")
    build_programs(layers)
    image = build_image({layer: arguments.filter or FILTERS[layer] for layer in layers})
    print("emulated: running on an emulated Ice Lake")
    lines = emulate(image, arguments.timeout_secs, arguments.verbose)
    return 0 if report(lines, layers) else 1


if __name__ == "__main__":
    sys.exit(main())
