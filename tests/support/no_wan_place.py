"""Running a command where no WAN can be emulated: what a plain container is to a program."""

from __future__ import annotations

from collections.abc import Sequence

from support.wan_support import why_no_wan

_PLACE = """
mount -t tmpfs none /dev/net
echo 0 > /proc/sys/user/max_user_namespaces || true
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def without_rights(command: Sequence[str]) -> list[str]:
    """The command without capabilities, without user namespaces below its own, and without /dev/net/tun; as it is where
    that is so already."""
    if why_no_wan() is not None:
        return list(command)
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _PLACE, "sh", *command]
