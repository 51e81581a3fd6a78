"""`egressproxy keys`: keys that are shown once, and records that files keep."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy.cli import key_files
from egressproxy.cli.main import main
from egressproxy.identity.api_keys import digest_of, new_key, new_record

FILE = """\
# who may ask
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: v1
kind: Secret
metadata:
  name: keys
  namespace: egress
stringData:
  # the build
  old-123456: '%s'
type: Opaque
---
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData: {alice: $2b$}
""".replace("%s", json.dumps(new_record(new_key(), name="old")))


def keys(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["keys", *map(str, arguments)])


def listed(path: Path) -> list[dict[str, Any]]:
    done = keys("list", path, "-o", "json")
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["keys"]
    return found


def test_without_a_file_the_manifest_is_printed_and_the_key_beside_it():
    done = keys("new", "--name", "ci", "--models", "gpt-*,o4", "--routes", "openai", "--secret", "egress/keys")
    secret = yaml.safe_load(done.stdout)
    key = done.stderr.splitlines()[-1]
    assert secret["metadata"] == {"name": "keys", "namespace": "egress"}
    ((entry, record),) = secret["stringData"].items()
    digest = digest_of(key.encode()).hex()
    assert entry == f"ci-{digest[:6]}"
    assert json.loads(record) == {
        "hash": f"sha256:{digest}", "name": "ci", "routes": ["openai"], "models": ["gpt-*", "o4"],
    }  # fmt: skip
    assert key not in done.stdout


def test_with_a_file_the_record_joins_its_secret_and_the_key_alone_is_printed(tmp_path: Path):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE)
    file.chmod(0o640)
    done = keys("new", "--name", "it's", "--group", "gold", "--expires", "30d", "--secret-file", file)
    assert re.fullmatch(r"egk_[A-Za-z0-9_-]{43}\n", done.stdout)
    lines = file.read_text().splitlines()
    (added,) = [line for line in lines if "it" in line and "it-s-" in line]
    assert "\n".join(line for line in lines if line != added) + "\n" == FILE
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]
    old, new = sorted(listed(file), key=lambda each: each["client"] != "egress/keys#old")
    assert (old["client"], old["state"]) == ("egress/keys#old", "without an end")
    assert (new["client"], new["groups"], new["state"][:6]) == ("egress/keys#it's", ["gold"], "until ")


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData:\n",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\ndata:\n  x: eA==\n---\nkind: Other\n",
    ],
)
def test_a_secret_without_entries_gets_its_first(tmp_path: Path, text: str):
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    assert keys("new", "--name", "ci", "--secret-file", file).exit_code == 0
    (entry,) = listed(file)
    assert entry["client"] == "default/keys#ci"
    assert keys("revoke", entry["entry"], file).exit_code == 0
    assert listed(file) == []
    assert keys("new", "--name", "ci", "--secret-file", file).exit_code == 0
    assert len(listed(file)) == 1


def test_a_revoked_key_leaves_the_file_and_all_else_stays(tmp_path: Path):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE)
    keys("new", "--name", "ci", "--secret-file", file)
    (entry,) = [each["entry"] for each in listed(file) if each["client"].endswith("#ci")]
    assert keys("revoke", entry, file).exit_code == 0
    assert file.read_text() == FILE
    done = keys("revoke", entry, file)
    assert done.exit_code == 1
    assert f"has no key {entry}" in done.output


def test_files_are_changed_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A key that one revokes would come back with what another has read before."""
    file, written = tmp_path / "keys.yaml", []
    file.write_text(FILE)
    write = key_files._write

    def checked(path: Path, text: str) -> None:
        folder = os.open(path.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(folder)
        written.append(path)
        write(path, text)

    monkeypatch.setattr(key_files, "_write", checked)
    assert keys("new", "--name", "ci", "--secret", "egress/keys", "--secret-file", file).exit_code == 0
    assert keys("revoke", "old-123456", tmp_path).exit_code == 0
    assert written == [file, file]


def test_what_a_cluster_gives_is_read_and_revoked(tmp_path: Path):
    """The `data` of `kubectl get secret -o yaml`."""
    file = tmp_path / "keys.yaml"
    record = base64.b64encode(json.dumps(new_record(new_key())).encode()).decode()
    text = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: keys\ndata:\n  b: eA==\n"
    file.write_text(f"{text}  a: {record}\n")
    assert [each["entry"] for each in listed(file)] == ["a"]
    assert keys("revoke", "a", tmp_path).exit_code == 0
    assert file.read_text() == text


def test_an_entry_among_others_of_a_line_is_listed_and_not_cut_out(tmp_path: Path):
    file = tmp_path / "keys.json"
    secret = {"kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"a": json.dumps(new_record(new_key()))}}
    file.write_text(json.dumps(secret))
    assert [each["entry"] for each in listed(file)] == ["a"]
    assert "write the Secret default/keys in block style" in keys("revoke", "a", file).output
    assert json.loads(file.read_text()) == secret


def test_a_folder_has_a_file_for_each_entry(tmp_path: Path):
    folder = tmp_path / "keys"
    folder.mkdir()
    assert keys("new", "--name", "ci", "--secret-file", folder).exit_code == 0
    (entry,) = [each["entry"] for each in listed(folder)]
    assert (folder / entry).exists()
    assert keys("revoke", entry, folder).exit_code == 0
    assert list(folder.iterdir()) == []


def test_folders_of_secrets_have_their_namespaces(tmp_path: Path):
    for folder in ("plain", "agents/keys"):
        (tmp_path / folder).mkdir(parents=True)
        assert keys("new", "--name", "ci", "--secret-file", tmp_path / folder).exit_code == 0
    assert [each["client"] for each in listed(tmp_path)] == ["agents/keys#ci", "default/plain#ci"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: ConfigMap\n", "has no Secret: name a file that is not there yet, and it is made with one"),
        (FILE, "has no Secret other: write --secret with one that it has: egress/keys, default/users"),
    ],
)
def test_a_manifest_without_the_secret_says_what_to_do(tmp_path: Path, text: str, says: str):
    file = tmp_path / "some.yaml"
    file.write_text(text)
    found = keys("new", "--name", "ci", "--secret", "other", "--secret-file", file)
    assert (found.exit_code, found.stderr) == (1, f"Error: {file} {says}\n")
    assert file.read_text() == text


def test_a_folder_of_manifests_gets_no_file_that_nobody_reads(tmp_path: Path):
    (tmp_path / "keys.yaml").write_text(FILE)
    refused = keys("new", "--name", "ci", "--secret-file", tmp_path)
    assert refused.exit_code == 1
    assert f"name the one that gets the key, such as {tmp_path / 'keys.yaml'}" in refused.output
    assert "egk_" not in refused.output
    assert [each.name for each in tmp_path.iterdir()] == ["keys.yaml"]


def test_a_folder_that_is_missing_is_named(tmp_path: Path):
    refused = keys("new", "--name", "ci", "--secret-file", tmp_path / "missing" / "keys.yaml")
    assert refused.exit_code == 1
    assert refused.output == (
        f"Error: {tmp_path / 'missing' / 'keys.yaml'}: there is no folder {tmp_path / 'missing'}: make it first\n"
    )


def test_a_new_file_is_made(tmp_path: Path):
    file = tmp_path / "keys.yaml"
    assert keys("new", "--name", "ci", "--secret", "egress/keys", "--secret-file", file).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each["client"] for each in listed(file)] == ["egress/keys#ci"]


def test_a_malformed_record_is_reported_and_the_others_are_listed(tmp_path: Path):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE.replace("  # the build", '  bad: \'{"hash": "x"}\''))
    done = keys("list", file)
    assert done.exit_code == 1
    assert "entry bad of egress/keys is not used: hash is not sha256:" in done.stderr
    assert "old-123456  egress/keys#old  without an end" in done.stdout
    assert "sha256" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--expires", "soon"], "write 30d, 12h"),
        (["--expires", "2020-01-31"], "2020-01-31 is over"),
        (["--service-account", "robot"], "serviceAccount without namespace"),
        (["--prefix", "a b"], "letters, digits and -"),
        (["--secret", "others", "--secret-file", "FILE"], "has no Secret others"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path: Path, arguments: list[str], says: str):
    file = tmp_path / "keys.yaml"
    file.write_text(FILE)
    done = keys("new", "--name", "ci", *(str(file) if each == "FILE" else each for each in arguments))
    assert done.exit_code in (1, 2)
    assert says in done.output
    assert file.read_text() == FILE


def test_an_end_may_be_a_time():
    done = keys("new", "--name", "ci", "--expires", "2031-01-31")
    assert '"notAfter": "2031-01-31T00:00:00Z"' in done.stdout
