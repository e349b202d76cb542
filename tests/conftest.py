"""Which tests go to the same worker of `pytest -n` (make python-test): those that share an expensive set-up.

And no limit to what one example of hypothesis takes, which depends on the machine.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
pytest.register_assert_rewrite("support")
# Where `make build` has compiled DeepSpeed's operator. Elsewhere the first engine of the tests would compile it again.
if sys.prefix != sys.base_prefix:
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of a module by its fixtures that live longer than one test, each parameter by itself.

    Those of a module that names its group stay in that one.
    """
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            shared = [
                f"{name}-{parameters.get(name)}"
                for name, definitions in item._fixtureinfo.name2fixturedefs.items()
                if definitions[-1].scope == "module"
            ]
            if shared:
                item.add_marker(pytest.mark.xdist_group("-".join([item.path.stem, *sorted(shared)])))
