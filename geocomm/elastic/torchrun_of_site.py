"""torchrun for a site of one node, which tells how it ended in a line: its ranks have told their errors themselves.

python -m geocomm.elastic.torchrun_of_site TORCHRUN-ARGUMENTS
"""

from __future__ import annotations

import sys
from typing import Any, cast

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

run = cast(Any, torchrun)  # without types


def main(arguments: list[str]) -> int:
    """Run torchrun; its exit status."""
    try:
        # Not by the name of this machine, as by default: nothing may know that name.
        run.run(run.parse_args(["--standalone", "--local-addr", "127.0.0.1", *arguments]))
    except SignalException:  # the supervisor's
        return 1
    except ChildFailedError as error:
        print(f"geocomm run: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
