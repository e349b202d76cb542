"""Facts of a torch for CMake: folder, Python include, extension suffix, pybind11 internals, version."""

import ctypes
import os
import re
import sys
import sysconfig

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # plugins (an older geocomm among them) have no part in the build

import torch


def pybind11_internals_version() -> str:
    """Version of the pybind11 internals that the imported torch registered with the interpreter."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    # A borrowed reference: as a py_object result ctypes would give it back once too often, which Python 3.13 dies of.
    api.PyInterpreterState_GetDict.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    borrowed = api.PyInterpreterState_GetDict(api.PyInterpreterState_Get())
    names = [str(key) for key in ctypes.cast(borrowed, ctypes.py_object).value]
    for name in names:
        if match := re.match(r"__pybind11_internals_v(\d+)", name):
            return match[1]
    sys.exit(f"no pybind11 internals found in this interpreter; torch {torch.__version__} is not one geocomm knows")


print(
    os.path.dirname(torch.__file__),
    sysconfig.get_path("include"),
    sysconfig.get_config_var("EXT_SUFFIX"),
    pybind11_internals_version(),
    torch.__version__,
    sep=";",
)
