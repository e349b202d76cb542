"""What is done at a node, as scripts for its `sh`.

The folder of a run at a site has keys/, code/, run/ where it is elastic, and of each node a log, telemetry, the
process's number, its exit status once it has ended (`.status`, written over what was there, which a full disk takes), a
mark once it is asked to end (`.asked`), and a lock, which is free when the run has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from shlex import quote

from geocomm.cli.ssh_sites.code_folder import CodeFolder
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile
from geocomm.cli.ssh_sites.ssh import Order
from geocomm.core.addresses import Address
from geocomm.security.key_folder import CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE, SITES_FILE

STATUS_LINE = "geocomm up: status "
"""What `follow` says last, on stderr. Words follow: the exit status, unless the run was killed; ASKED, FULL."""
ASKED = "asked"
"""`geocomm up` or `down` has asked the run to end, from whichever machine."""
FULL = "full"
"""The disk of the run's folder takes no more."""
RUNNING = 75
"""Exit status of `start` where a run goes on."""
_MARK = "_GEOCOMM_UP"
"""Variable in the environment of all processes of a node's run."""
_LAST_BYTES = 1 << 16


def python(node: Node) -> str:
    """The word that calls Python, in the home, where ssh begins."""
    path = node.site.python
    return f'"$HOME"/{quote(path.removeprefix("~/"))}' if path.startswith("~/") else quote(path)


def in_code(node: Node) -> str:
    """The word that calls Python inside the folder of the script."""
    path = node.site.python
    return f'"$HOME"/{quote(path)}' if "/" in path and not path.startswith(("/", "~/")) else python(node)


def facts(node: Node, hub: str) -> Order:
    """Ask what the machine is (`facts.py`)."""
    program = resources.files("geocomm.cli.ssh_sites").joinpath("facts.py")
    where = Address.parse(hub)
    arguments = shlex.join([node.folder, where.host, str(where.port), str(node.number), CA_FILE])
    return Order(f"exec {python(node)} - {arguments}", ("cat", str(program)))


def put_keys(node: Node, keys: Path) -> Order:
    """Copy the site's folder of keys."""
    files = [CA_FILE, CERTIFICATE_FILE, KEY_FILE]
    files += [name for name in (REVOKED_FILE, SITES_FILE) if (keys / name).exists()]
    folder = quote(node.folder)
    script = f"umask 077 && mkdir -p {folder}/keys {folder}/code && tar -xof - -C {folder}/keys"
    script += f" && chmod go-rwx {folder}/keys {folder}/keys/*"
    return Order(script, ("tar", "-C", str(keys), "-cf", "-", *files))


def put_code(node: Node, code: CodeFolder) -> Order:
    """Copy the script's folder."""
    return Order(f"tar -xzof - -C {quote(node.folder)}/code", tuple(code.tar()))


def doctor(node: Node, sites: SitesFile, *more: str) -> str:
    """`geocomm doctor` with the keys and variables of the run."""
    command = [in_code(node), "-m geocomm doctor", shlex.join(more)]
    return f"{_enter(node, sites)}\nexec {' '.join(command)}"


def listening_doctor(node: Node, sites: SitesFile, port: int) -> str:
    """A doctor that answers at a port while this script has an input."""
    command = f"{in_code(node)} -m geocomm doctor --listen {port}"
    return f"{_enter(node, sites)}\n{command} </dev/null &\ncat >/dev/null\nkill $!"


def start(node: Node, sites: SitesFile, arguments: Sequence[str], elastic: bool) -> Order:
    """Start `geocomm run` so that it outlives the connection. Exit status RUNNING where one goes on."""
    name = f"node-{node.number}"
    words = [*_run_options(node, sites, elastic), *sites.run_options, *node.site.run_options, "--"]
    if not elastic:
        words += ["--nnodes", str(len(sites.nodes)), "--node-rank", str(node.number)]
    if node.site.ranks is not None:
        words += ["--nproc-per-node", str(node.site.ranks)]
    command = f"{in_code(node)} -m geocomm run {shlex.join([*words, *arguments])}"
    return Order(
        f"""{_enter(node, sites)}
exec 9>>../{name}.lock || exit
flock -n 9 || exit {RUNNING}
export PYTHONUNBUFFERED=1 {_MARK}="$PWD/{name}"
(cd .. && rm -rf {name}.pid {name}.asked {name}.telemetry.1; mv -f {name}.log {name}.log.1
mv -f {name}.telemetry {name}.telemetry.1) 2>/dev/null
echo "running  " >../{name}.status
setsid nohup sh -c '"$@" & echo $! >../{name}.pid; wait $!; printf "%-9s\\n" $? 1<>../{name}.status' sh \\
  {command} \\
  >../{name}.log 2>&1 </dev/null &
while [ ! -s ../{name}.pid ]; do kill -0 $! || exit; sleep 0.1; done"""
    )


def follow(node: Node) -> str:
    """Show the log as it grows; once the run has ended, say so on stderr (STATUS_LINE)."""
    name = f"node-{node.number}"
    ended, status = f"flock -n {name}.lock true", f"grep -s '^[0-9]' {name}.status"
    return f"""cd {quote(node.folder)} || exit
if {ended}; then tail -c {_LAST_BYTES} {name}.log
else tail -c {_LAST_BYTES} -f --pid="$(cat {name}.pid)" {name}.log
fi
until {status} >/dev/null || {ended}; do sleep 0.2; done
asked= full=
[ -e {name}.asked ] && asked={ASKED}
head -c 65536 /dev/zero 2>/dev/null >{name}.room || full={FULL}
rm -f {name}.room
echo "{STATUS_LINE}$({status}) $asked $full" >&2"""


def stop(node: Node) -> Order:
    """Ask the run to end; nothing where none goes on."""
    name = f"node-{node.number}"
    return Order(
        f"""cd {quote(node.folder)} || exit 0
flock -n {name}.lock true && exit
touch {name}.asked
kill -TERM "$(cat {name}.pid)\""""
    )


def kill(node: Node) -> Order:
    """End all processes of the run, whatever they do."""
    return Order(
        f"""cd {quote(node.folder)}/code || exit 0
mark="{_MARK}=$PWD/node-{node.number}"
for process in /proc/[0-9]*; do
  if tr '\\0' '\\n' <"$process/environ" 2>/dev/null | grep -qxF -e "$mark"; then kill -KILL "${{process#/proc/}}"; fi
done
exit 0"""
    )


def steps(node: Node) -> str:
    """At the hub: print the steps of all sites, again and again (`steps.py`)."""
    return f"exec {python(node)} -m geocomm.cli.ssh_sites.steps {quote(node.folder)} {node.number}"


def _enter(node: Node, sites: SitesFile) -> str:
    """Go to the script's folder, with the variables of the run."""
    given = sites.environment | node.site.environment
    lines = [f"cd {quote(node.folder)}/code || exit", 'export GEOCOMM_KEYS="${PWD%/code}/keys"']
    return "\n".join([*lines, *(f"export {name}={quote(value)}" for name, value in given.items())])


def _run_options(node: Node, sites: SitesFile, elastic: bool) -> list[str]:
    words = ["--hub", sites.hub]
    if node.site.listen and node.rank_in_site == 0:
        words += ["--listen", node.site.listen, *(["--lead"] if elastic else [])]
    given = {"--backend": sites.backend, "--backend-name": sites.backend_name}
    words += [word for option, value in given.items() if value is not None for word in (option, value)]
    if not elastic:
        return [*words, "--telemetry", f"../node-{node.number}.telemetry"]
    words += ["--elastic", "--run-dir", "../run" if node.rank_in_site == 0 else f"../run-{node.rank_in_site}"]
    if node.rank_in_site == 0:
        words += ["--wait-for", ",".join(sites.sites)]
    if len(node.site.ssh) > 1:
        words += ["--site-nodes", str(len(node.site.ssh)), "--node-rank", str(node.rank_in_site)]
        words += ["--site-hub", str(node.site.site_hub)]
    return words
