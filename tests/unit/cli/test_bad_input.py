"""Every command with what it cannot use: the exit status that its --help tells, and one line that says what is wrong.

The commands run in this process, whose other tests have paid for their imports; none gets as far as to start another.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from geocomm.core.place import VARIABLES
from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.observe.telemetry.run_store import RunStore
from support.command_tree import APP, COMMANDS

ELASTIC = "run --elastic --hub h:1 --run-dir {away} --keys {keys}/a"
# (command line, exit status, words of the line). {file}: a text file, {folder}: a folder, {run}: the run
# folder of a run that has not begun, {telemetry}: that of its reports, {away}: nothing.
CASES = [
    ("demo --rtt fast", 2, "rtt: 'fast'"),
    ("demo --steps 1", 2, "--steps"),
    ("demo --elastic --steps 39", 2, "--steps 39"),
    ("demo --out {folder}", 2, "exists already"),
    ("demo --weights --elastic", 2, "name one"),
    ("train --config {away}", 2, "does not exist"),
    ("train --config {folder}", 2, "cannot be read"),
    ("train --set nonsense", 2, "--set nonsense"),
    ("train --set model.preset=nope", 2, "model.preset"),
    ("train --set output_dir={file}/run", 2, "output_dir"),
    ("train --print-config --set training.stepz=1", 2, "training.steps"),
    ("export {away} {away}/x", 2, "{away} does not exist"),
    ("export {folder} {away}", 2, "{folder} is no run with a complete checkpoint"),
    ("export {folder} {away} --format savedmodel", 2, "--format"),
    ("export {folder} {away} --dtype int8", 2, "--dtype"),
    ("export {folder} {away} --verify -1", 2, "--verify"),
    ("subscribe tls://nowhere --into {away}", 2, "needs keys"),
    ("subscribe foo://b/x --into {away}", 2, "foo://b/x cannot be opened"),
    ("subscribe {folder} --into {away} --every fast", 2, "--every: 'fast'"),
    ("subscribe {folder} --into {away} --once --wait long", 2, "--wait: 'long'"),
    ("subscribe {folder} --into {folder}/m --once --wait 0", 1, "no version of {folder}"),
    ("subscribe {folder} --into {away} --rate fast", 2, "--rate: 'fast'"),
    ("subscribe {folder} --into {away} --listen :29700", 2, "--listen needs keys"),
    ("subscribe {folder} --into {away} --keys {away}", 2, "cannot read {away}/ca.pem"),
    ("subscribe {folder} --into {away} --model-files {away}", 2, "{away} is no folder"),
    ("subscribe {folder} --into {model}", 2, "{model} has other files in it"),
    ("serve {away}", 2, "{away} is not there"),
    ("serve {file}", 2, "{file} is no folder"),
    ("serve {folder}", 2, "{folder} holds no model"),
    ("serve {model} --name a@b", 2, "--name a@b"),
    ("serve {model} --host 0.0.0.0", 2, "--host 0.0.0.0 is open to other machines"),
    ("serve {model} --api-key-file {away}", 2, "--api-key-file {away} is not there"),
    ("serve {model} --api-key-file {file}", 2, "{file} can be read by others"),
    ("serve {model} --python {away}", 2, "--python {away} cannot be run"),
    ("serve {model} --engine llama.cpp", 2, "llama.cpp serves gguf folders"),
    ("serve {model} --engine nope", 2, "--engine"),
    ("serve {model} --follow tls://nowhere", 2, "needs keys"),
    ("serve {model} --follow foo://b/x", 2, "foo://b/x cannot be opened"),
    ("serve {model} --follow {folder} --keys {away}", 2, "cannot read {away}/ca.pem"),
    ("serve {model} --follow {folder} --engine vllm", 2, "--follow is for transformers"),
    ("serve {model} --follow {folder} -- --continuous-batching", 2, "leave out --continuous-batching"),
    ("serve {model} --publisher a", 2, "--publisher and --keys are for --follow"),
    ("serve {model} --port 0", 2, "--port"),
    ("run --hub h:1 --nproc-per-node 8 train.py", 2, "those of torchrun come after --"),
    ("up --nproc-per-node 8 train.py", 2, "those of torchrun come after --"),
    ("run -- train.py", 2, "--hub"),
    ("run --hub h:1 --publish {away} --keys {keys}/a -- x.py", 2, "--publish"),
    (f"{ELASTIC} --publish-readers a -- x.py", 2, "--publish-readers is for --publish"),
    (f"{ELASTIC} --publish {{folder}}/new --publish-readers a,ü -- x.py", 2, "--publish-readers: site 'ü'"),
    (f"{ELASTIC} --publish {{folder}}/new --publish-readers= -- x.py", 2, "--publish-readers: site ''"),
    ("run --hub h:1 --publish-readers a --keys {keys}/a -- x.py", 2, "--publish-readers"),
    (f"{ELASTIC} --publish https://h/x -- x.py", 2, "--publish https://h/x: a web server is only read from"),
    (f"{ELASTIC} --publish foo://h/x -- x.py", 2, "foo://h/x cannot be opened"),
    (f"{ELASTIC} --publish {{away}} --publish-dtype int8 -- x.py", 2, "--publish-dtype int8"),
    ("run --hub hub:29400 -- train.py", 2, "no keys"),
    ("run --hub hub:29400 --keys {away} -- train.py", 2, "cannot read {away}/ca.pem"),
    ("run --hub nowhere --keys {keys}/a -- train.py", 2, "'nowhere' is not an address"),
    ("run --hub h:99999 --keys {keys}/a -- train.py", 2, "'h:99999': port 99999 is not within 1 to 65535"),
    ("run --hub h:29400 --listen [::]:99999 --keys {keys}/a -- train.py", 2, "port 99999 is not within 0 to 65535"),
    ("run --hub h:29400 --listen 29400 --keys {keys}/a -- train.py", 2, "'29400' is not an address"),
    ("run --hub 192.0.2.77:29400 --listen 192.0.2.77:0 --keys {keys}/a -- train.py", 2, "no interface of this machine"),
    ("run --hub h:1 --backend geocomm -- train.py", 2, "no keys"),
    ("run --hub h:1 --backend geocom --keys {keys}/a -- train.py", 2, "did you mean 'geocomm'"),
    (
        "run --hub h:1 --backend nccl --keys {keys}/a -- train.py",
        2,
        "--backend nccl: it must be one of script, geocomm",
    ),
    ("run --hub h:1 --backend geocomm --backend-name nnccl --keys {keys}/a -- train.py", 2, "did you mean 'nccl'"),
    (
        "run --hub h:1 --backend-name nccl --keys {keys}/a -- train.py",
        2,
        "--backend-name nccl is for --backend geocomm",
    ),
    ("run --elastic --hub h:1 --backend geocomm --keys {keys}/a -- train.py", 2, "leave out --backend"),
    ("run --elastic --hub h:1 --site-hub h:99999 --keys {keys}/a -- train.py", 2, "port 99999"),
    ("run --elastic --journal etcd://h:99999 --keys {keys}/a -- train.py", 2, "port 99999 is not within 1 to 65535"),
    ("run --hub nowhere.invalid:29400 --wait 0 --keys {keys}/a -- train.py", 2, "geocomm run: nowhere.invalid:29400: "),
    ("up -- train.py", 2, "sites.toml: No such file"),
    ("down {away}", 2, "{away}: No such file"),
    ("down {file}", 2, "{file}: Expected '='"),
    ("doctor --rate fast", 2, "--rate"),
    ("doctor --rtt fast", 2, "--rtt"),
    ("doctor --peer nowhere", 2, "'nowhere' is not an address"),
    ("doctor --peer h:99999", 2, "port 99999 is not within 1 to 65535"),
    ("monitoring {away} --target h:99999", 2, "port 99999 is not within 1 to 65535"),
    ("dashboard {telemetry} --address 192.0.2.77 --token x", 2, "no interface of this machine has 192.0.2.77"),
    ("doctor --peers 0", 2, "--peers"),
    ("doctor --listen 99999", 2, "--listen"),
    ("probe", 2, "RANK is not set"),
    ("probe --seconds 0", 2, "--seconds"),
    ("plan", 2, "--parameters or --model"),
    ("plan --parameters many", 2, "--parameters many"),
    ("plan --model nope", 2, "--model nope"),
    ("plan --parameters 7b --links {away}", 2, "cannot read {away}"),
    ("plan --parameters 7b --links {file}", 2, "{file}"),
    ("plan --parameters 7b --codec nope", 2, "'nope' is not a known codec"),
    ("plan --parameters 7b --step-time fast", 2, "--step-time: 'fast'"),
    ("plan --parameters 7b --access fast", 2, "--access: 'fast'"),
    ("plan --parameters 7b --rate fast", 2, "--rate: 'fast'"),
    ("plan --parameters 7b --rtt fast", 2, "--rtt: 'fast'"),
    *((f"{command} {{file}}", 2, "{file} is no run store") for command in ("why", "top", "hang", "dashboard")),
    ("trace {file} --out {away}", 2, "{file} is no run store"),
    ("why {away}", 2, "{away} has no telemetry"),
    ("export / {away}", 2, "/ is no run with a complete checkpoint"),
    ("top {folder}", 2, "{folder} has no telemetry"),
    ("hang {folder}", 2, "{folder} has no telemetry"),
    ("dashboard {folder}", 2, "{folder} has no telemetry"),
    ("hang --after -1", 2, "--after"),
    ("doctor --timeout 0.01", 2, "--timeout: '0.01' is not 0.1 s or more"),
    ("subscribe {folder} --into {away} --wait soon", 2, "--wait: 'soon'"),
    ("alerts rules x", 2, "x"),
    ("monitoring", 2, "DIR"),
    ("monitoring {file}/x", 2, "{file}"),
    ("why {folder}", 2, "{folder} has no telemetry"),
    ("why {away} --last 1", 2, "--last"),
    ("trace {folder}", 2, "--out"),
    ("trace {folder} --out x.tar", 2, "{folder} has no telemetry"),
    ("trace {folder} --out {file}/x.tar", 2, "--out {file}/x.tar"),
    ("trace {folder} --out x.tar --steps 0", 2, "--steps"),
    ("log", 2, "RUN_DIR"),
    ("log {away}", 2, "{away} has no journal.sqlite"),
    ("run --elastic --hub 127.0.0.1:29400 -- x.py", 2, "keys"),
    ("run --elastic --hub h:1 --journal etcd://h -- x.py", 2, "--journal may instead"),
    ("run --hub h:1 --never-lead -- x.py", 2, "--never-lead are for --journal"),
    ("run --journal etcd://h -- x.py", 2, "--journal is for --elastic"),
    ("run --elastic --journal h:2379 --run-dir {away} --keys {keys}/a -- x.py", 2, "etcd://HOST:2379,HOST:2379/NAME"),
    ("run --elastic --journal etcd://h --address h --run-dir {away} --keys {keys}/a -- x", 2, "'h' is not an"),
    ("members ls --run-dir {away}", 2, "not the run folder of a site"),
    ("members show a --run-dir {away}", 2, "not the run folder of a site"),
    ("members show a --run-dir {run}", 2, "the run has no site a; it has none"),
    ("members remove a --run-dir {away}", 2, "not the run folder of a site"),
    ("snapshot ls --run-dir {away}", 2, "not the run folder of a site"),
    ("snapshot ls --run-dir nothing://{away}", 2, "Protocol not known"),
    ("snapshot verify --run-dir file://{away}", 2, "no complete snapshot; it has none"),
    ("run --hub h:1 --snapshot-url file://{away} --keys {keys}/a -- x.py", 2, "--snapshot-url"),
    ("snapshot verify 7 --run-dir {run}", 2, "no complete snapshot 7: this site has none"),
    ("snapshot export --out {away}/x --run-dir {run}", 2, "--snapshot-every"),
    ("snapshot restore --into {away} --run-dir {run}", 2, "--snapshot-every"),
    ("data add {away} {folder}", 2, "{away}: "),
    ("data remove {away} {folder}", 2, "{away}: "),
    ("data ls {folder}", 2, "{folder} has no version of a data set"),
    ("data ls foo://bucket/web", 2, "foo://bucket/web cannot be opened"),
    ("data check {folder}@new", 2, "the version after @ is no number"),
    ("members promote --run-dir {away}", 2, "not the run folder of a site"),
    ("members lead --hub nowhere --run-dir {away} --keys {away}", 2, "nowhere"),
    (f"{ELASTIC} --data {{away}}@17 --sequence-length 8 -- x.py", 2, "leave out @"),
    (f"{ELASTIC} --data {{away}} -- x.py", 2, "--data needs --sequence-length"),
    (f"{ELASTIC} --sequence-length 8 -- x.py", 2, "are for --data"),
    ("run --hub h:1 --data {away} --keys {keys}/a -- x.py", 2, "are for --elastic"),
    ("members lead --hub h:1 --run-dir {away} --keys {keys}/a --data {away}", 2, "--data needs --sequence-length"),
    ("members lead --hub h:1 --journal etcd://h --run-dir {away}", 2, "--journal may instead"),
    ("keys create a/b --out {away}", 2, "'a/b'"),
    ("keys create a --out {file}/keys", 2, "cannot be written"),
    ("keys create a --out {keys}", 2, "exists already"),
    ("keys create a --days 0 --out {away}", 2, "days: 0"),
    ("keys add c --out {away}", 2, "holds no CA"),
    ("keys add a --out {keys}", 2, "exists already"),
    ("keys renew a --out {away}", 2, "holds no CA"),
    ("keys renew c --out {keys}", 2, "c"),
    ("keys list --out {away}", 2, "holds no CA"),
    ("keys revoke a --out {away}", 2, "holds no CA"),
    ("keys revoke c --out {keys}", 2, "c"),
    ("wan run --profile leo --rtt 80ms -- true", 2, "--rtt and --loss out"),
    ("wan run --profile geo -- true", 2, "leo"),
    ("wan run", 2, "COMMAND"),
    ("wan run --sites 1 -- true", 2, "--sites"),
    ("wan run --sites 65 -- true", 2, "--sites"),
    ("wan run --rtt fast -- true", 2, "rtt: 'fast'"),
    ("wan run --grace fast -- true", 2, "grace: 'fast'"),
    ("wan run --matrix {away} -- true", 2, "cannot read {away}"),
    ("wan run --matrix {file} -- true", 2, "{file} is not TOML"),
    ("wan run --keys {away} -- true", 2, "cannot read {away}"),
    ("wan run --json {file}/x.json -- true", 2, "--json {file}/x.json"),
    ("wan run --json {folder} -- true", 2, "--json {folder}: it is a folder"),
    ("wan run --master-port 0 -- true", 2, "master_port: 0"),
    ("wan set up", 2, "--link"),
    ("wan set --link a up", 2, "A:B"),
    ("wan set --link a:b sideways", 2, "'sideways'"),
    ("wan set --link a:b --rate fast", 2, "rate: 'fast'"),
    ("wan set --link a:b --control {away} up", 125, "no emulated WAN answers at {away}"),
    ("wan stats --control {away}", 125, "no emulated WAN answers at {away}"),
    ("wan stats --control {file}", 125, "no emulated WAN answers at {file}"),
    ("bench wan --rtt fast", 2, "rtt: 'fast'"),
    ("bench wan --sizes 1", 2, "sizes: '1'"),
    ("bench wan --codecs nope", 2, "'nope' is not a known codec"),
    ("bench wan --keys {away}", 2, "cannot read {away}"),
    ("bench wan --out {file}/x.md", 2, "--out {file}/x.md"),
    ("bench link --rounds 0", 2, "--rounds"),
    ("bench link --out {file}/x.md", 2, "--out {file}/x.md"),
    ("bench gpu --elements 5", 2, "elements"),
    ("bench gpu --out {file}/x.md", 2, "--out {file}/x.md"),
    ("bench codec --codec nope", 2, "'nope' is not a known codec"),
    ("bench codec --file {away}", 2, "{away}"),
    ("bench codec --file {folder}", 2, "{folder}"),
    ("bench codec --plot {file}/x.png", 2, "--plot {file}/x.png"),
    ("nonsense", 2, "nonsense"),
    ("wan nonsense", 2, "nonsense"),
]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What stands for the names in CASES; and an environment that no launcher has been at."""
    from geocomm.security.job_ca import JobCa

    for name in (*VARIABLES, "MASTER_ADDR", "MASTER_PORT", "GEOCOMM_KEYS", "GEOCOMM_SITE", "GEOCOMM_WAN_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("neither TOML nor JSON\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "model" / "config.json").touch()
    JobCa.create(tmp_path / "keys", "job", ["a"], 30)
    (tmp_path / "run").mkdir()
    SqliteJournal(RunDir(tmp_path / "run").journal).close()
    (tmp_path / "telemetry").mkdir()
    RunStore(tmp_path / "telemetry", write=True).close()
    names = ("file", "folder", "model", "keys", "run", "telemetry", "away")
    return {name: str(tmp_path / name) for name in names}


def _require_refusal(result: Result, status: int, words: str) -> None:
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit), result.exception  # any other would be a traceback
    assert result.stdout == ""
    said = result.stderr.replace("\n", "").replace("│", "")  # a long path is broken at the end of a line
    assert words in said
    if said.startswith("geocomm"):
        assert len(result.stderr.splitlines()) == 1
    else:
        assert "Usage: " in said  # typer's own, of an option that it checks


@pytest.mark.parametrize(("line", "status", "words"), CASES, ids=[case[0] for case in CASES])
def test_bad_input_ends_with_the_status_of_the_help_and_one_line(
    line: str, status: int, words: str, places: dict[str, str]
) -> None:
    arguments = [word.format(**places) for word in line.split()]
    result = CliRunner(env={"COLUMNS": "400"}).invoke(APP, arguments)
    _require_refusal(result, status, words.format(**places))


def test_every_command_has_a_bad_input() -> None:
    tried = [case[0] for case in CASES]
    assert [words for words in COMMANDS if not any(line.startswith(" ".join(words)) for line in tried)] == []


def test_probe_whose_result_could_not_be_written_ends_before_it_waits_for_ranks(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    path = f"{places['file']}/links.json"
    _require_refusal(CliRunner(env={"COLUMNS": "400"}).invoke(APP, ["probe", "--out", path]), 2, path)


def test_links_of_a_file_are_refused_by_field(places: dict[str, str]) -> None:
    path = Path(places["folder"]) / "links.json"
    path.write_text(
        json.dumps(
            {"geocomm_links": 1, "sites": ["a", "b"], "rate_bps": [[0, "x"], [1e9, 0]], "rtt_s": [[0, 0], [0, 0]]}
        )
    )
    result = CliRunner(env={"COLUMNS": "400"}).invoke(APP, ["plan", "--parameters", "7b", "--links", str(path)])
    _require_refusal(result, 2, f"{path}: rate_bps[0][1]")
