"""torchrun for a site of one node, which tells how it ended in a line: its ranks have told their errors themselves.

python -m geocomm.elastic.torchrun_of_site TORCHRUN-ARGUMENTS
"""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import Any, cast

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.message_log import tell
from geocomm.core.site import site_name
from geocomm.group.rendezvous.first_error import hide_torchruns_lines, tell_failure
from geocomm.group.rendezvous.launch_checks import check_program

run = cast(Any, torchrun)  # without types


def main(arguments: list[str]) -> int:
    """Run torchrun; its exit status, or EXIT_BAD_INPUT for what no other start would mend."""
    # torchrun's own folder for what ranks say of their errors is never removed, and each start makes one.
    with tempfile.TemporaryDirectory(prefix="geocomm-torchrun-", ignore_cleanup_errors=True) as folder:
        # Not by the name of this machine, as by default: nothing may know that name.
        chosen = run.parse_args(["--standalone", "--local-addr", "127.0.0.1", "--log-dir", folder, *arguments])
        try:
            check_program(chosen)
        except BadInput as error:
            tell("run", str(error))
            return EXIT_BAD_INPUT
        hide_torchruns_lines()
        # A second signal, while torchrun formats its line about the first, would show as a traceback.
        agent = logging.getLogger("torch.distributed.elastic.agent.server.api")
        agent.addFilter(lambda record: not str(record.msg).startswith("Received %s death signal"))
        try:
            run.run(chosen)
        except SignalException:  # the supervisor's
            return 1
        except ChildFailedError as error:
            tell_failure(error, site_name() or "")
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
