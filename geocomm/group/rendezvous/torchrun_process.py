"""What `geocomm run` starts on every node: `torchrun_at_hub`, which imports torch.

python -m geocomm.group.rendezvous.torchrun_process HUB WAY WAIT_S TORCHRUN-ARGUMENTS
"""

from __future__ import annotations

import sys

from geocomm.core.ended_by_signal import end_in_a_line

if __name__ == "__main__":
    end_in_a_line("run")
    from geocomm.group.rendezvous.torchrun_at_hub import main

    main(sys.argv[1:])
