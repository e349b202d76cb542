"""What c10d asks of a backend, in the header of the torch that is installed: all of it is there, or is left out for a
reason that stands here. A new minor version of torch may bring more."""

from __future__ import annotations

import re
from pathlib import Path

import torch

HEADER = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/Backend.hpp"
FOLDER = Path(__file__).resolve().parents[3] / "csrc/binding/module"
RECONFIGURE = ("supportsReconfigure", "get_reconfigure_handle", "reconfigure")

LEFT_OUT = {
    **dict.fromkeys(("all_gather_single", "all_gather_single_coalesced"), "calls the name before torch 2.14"),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_single_coalesced"), "calls the name before torch 2.14"),
    **dict.fromkeys(("all_to_all_single", "gather_single"), "calls the name before torch 2.14"),
    **dict.fromkeys(("getBoundDeviceId", "setBoundDeviceId", "isInitialized"), "torch's own does it"),
    "clone": "of the options",
    "addEphemeralTimeout": "each operation has its own time-out",
    "eagerConnectSingleDevice": "groups connect when they are made",
    **dict.fromkeys(("startTimeEstimate", "endTimeEstimate"), "nothing is estimated"),
    **dict.fromkeys(("enableCollectivesTiming",), "stats() times the operations"),
    **dict.fromkeys(("allocateTensor", "getMemAllocator", "supportsTensorAlloc"), "memory of NCCL's own"),
    **dict.fromkeys(("getMemoryStats", "suspend", "resume"), "memory of NCCL's own"),
    **dict.fromkeys(("supportsShrinking", "shrink", "merge"), "the members of a group are fixed"),
    **dict.fromkeys(RECONFIGURE, "ReconfigurableGroup does it"),
    **dict.fromkeys(("supportsWindow", "new_window"), "one-sided operations are NCCL's and XCCL's"),
    **dict.fromkeys(("supportsAbortHooks", "registerAbortHook", "unregisterAbortHook"), "no hooks"),
    **dict.fromkeys(("registerOnCompletionHook", "waitForPendingWorks"), "registerCompletionHook is the newer way"),
}


def test_each_function_of_a_backend_is_overridden_or_left_out_for_a_reason() -> None:
    header = re.sub(r"//.*", "", HEADER.read_text())
    asked = set(re.findall(r"\bvirtual\b[^;{]*?([A-Za-z_]\w*)\s*\(", header[header.index("class TORCH_API Backend") :]))
    assert {"allreduce", "split", "barrier"} <= asked
    overridden = _overridden_in("group_operations.h") | _overridden_in("process_group.h")
    assert asked - overridden - LEFT_OUT.keys() == set()
    assert overridden & LEFT_OUT.keys() == set()


def test_a_group_whose_ranks_change_forwards_what_is_no_operation() -> None:
    forwarded = _overridden_in("reconfigurable_group.h")
    assert forwarded - set(RECONFIGURE) == _overridden_in("process_group.h") - {"split"}
    assert set(RECONFIGURE) <= forwarded


def _overridden_in(header: str) -> set[str]:
    code = re.sub(r"//.*", "", (FOLDER / header).read_text())
    return set(re.findall(r"(?<!~)\b([A-Za-z_]\w*)\([^;{]*\)\s*(?:const\s*)?override", code))
