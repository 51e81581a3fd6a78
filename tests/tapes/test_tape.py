"""Tapes as files: what people and vcrpy read, and what comes back."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.cli.main import main
from egressproxy.tapes.checks import answer_changes, header_of
from egressproxy.tapes.filter import ends_of_events, event_times
from egressproxy.tapes.masking import Masker
from egressproxy.tapes.tape import Interaction, TapeError, file_name, read, write, written

JSON = [("content-type", "application/json")]
EVENTS = [("content-type", "text/event-stream")]
ANSWER = b'{"id": "a", "choices": [{"n": 1.50, "text": "gr\xc3\xbc\xc3\x9fe"}]}'
FOUND = Interaction(
    "POST", "https://api.example.com/v1/x?a=1", [*JSON, ("accept", "*/*")], b'{"q": "x"}', 200, "OK",
    [*JSON, ("set-cookie", "a=1"), ("set-cookie", "b=2")], ANSWER, "2026-11-30T10:00:00Z", 0.25, "gzip",
)  # fmt: skip


def tape(folder: Path, *found: Interaction, name: str = "api.example.com.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / name, [written(each.readable()) for each in found])
    return folder / name


def tapes(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["tapes", *map(str, arguments)])


def test_a_tape_is_readable_and_for_its_owner_alone(tmp_path: Path):
    path = tape(tmp_path, FOUND)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    text = path.read_text("utf-8")
    assert text.startswith("version: 1\ninteractions:\n- request:\n    method: POST\n")
    assert '"n": 1.5,\n' in text
    assert '"text": "grüße"\n' in text
    assert "      set-cookie: [a=1, b=2]\n" in text


def test_a_tape_has_the_form_of_vcrpy(tmp_path: Path):
    """As `vcr.serialize.deserialize` takes it apart: version 1, and no other keys where those are arguments."""
    data = yaml.safe_load(tape(tmp_path, FOUND).read_text("utf-8"))
    assert data["version"] == 1
    (entry,) = data["interactions"]
    assert set(entry["request"]) == {"method", "uri", "body", "headers"}
    assert set(entry["response"]) == {"status", "headers", "body"}
    assert entry["response"]["status"] == {"code": 200, "message": "OK"}
    assert json.loads(entry["response"]["body"]["string"]) == json.loads(ANSWER)


def test_what_is_written_is_read_again(tmp_path: Path):
    stream = Interaction(
        "GET", "https://api.example.com/s", [], b"", 200, "OK", EVENTS, b"data: 1\n\ndata: 2\n\n", "x", 1.0, "",
        (0.1, 0.9), is_open=True,
    )  # fmt: skip
    binary = Interaction("GET", "https://api.example.com/b", [], b"", 206, "", [], b"\xff\x00\x01")
    before = [FOUND.readable(), stream, binary]
    again = read(tape(tmp_path, *before))
    assert [again[0], again[1]] == before[:2]
    assert again[2].body == binary.body


def test_a_manifest_with_a_digest_keeps_its_bytes():
    media = "application/vnd.oci.image.manifest.v1+json"
    headers = [("content-type", media), ("docker-content-digest", "sha256:0")]
    body = b'{"a":1, "mail":"jane.roe@corp-mail.com"}'
    found = Interaction("GET", "https://r.example/v2/x/manifests/1", [], b"", 200, "OK", headers, body)
    assert Masker().interaction(found).readable().body == body


@settings(max_examples=30)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_every_body_comes_back_as_it_was(body: bytes):
    entry = written(Interaction("POST", "https://a.example/", [], body, 200, "OK", [], body))
    (found,) = yaml.safe_load(entry)
    for back in (found["request"]["body"], found["response"]["body"]["string"]):
        assert (back.encode() if isinstance(back, str) else back or b"") == body


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", ":2: this is not YAML"),
        ("a: 1", "no list `interactions`"),
        ("interactions: []\nversion: 2", "version is 2"),
        ("version: 1\ninteractions: [{request: {method: GET}}]", "interaction 1: 'response' is missing"),
        (
            "version: 1\ninteractions: [{request: {method: GET, uri: ftp://x}, response: {status: {code: 200}}}]",
            "interaction 1: request.uri is 'ftp://x'",
        ),
        (
            "version: 1\ninteractions: [{request: {method: GET, uri: 'http://x'}, response: {status: {code: 99}}}]",
            "write a number from 200 to 599",
        ),
    ],
    ids=["yaml", "list", "version", "response", "uri", "status"],
)
def test_a_wrong_tape_is_told_with_its_place(tmp_path: Path, text: str, told: str):
    path = tmp_path / "a.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(TapeError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert tapes("check", tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("https://API.Example.com/x", "api.example.com.yaml"),
        ("https://api.example.com:443/", "api.example.com.yaml"),
        ("http://api.example.com:8443/", "api.example.com_8443.yaml"),
        ("http://[::1]:80/", "__1.yaml"),
        ("http://..hidden/", "hidden.yaml"),
    ],
    ids=["host", "usual-port", "port", "address", "dots"],
)
def test_a_host_has_a_file(uri: str, name: str):
    assert file_name(uri) == name


def test_events_have_the_time_of_the_piece_that_ends_them():
    body = b"data: 1\n\ndata: 2\r\n\r\n: x\n\nrest"
    assert [body[:end][-4:] for end in ends_of_events(body)] == [b" 1\n\n", b"\r\n\r\n", b" x\n\n", b"rest"]
    assert event_times(body, [(0.1, 4), (0.2, 11), (0.3, len(body))]) == (0.2, 0.3, 0.3, 0.3)


def test_a_check_finds_what_somebody_has_written_by_hand(tmp_path: Path):
    tape(tmp_path, FOUND)
    fine = tapes("check", tmp_path)
    assert (fine.exit_code, fine.output) == (1, fine.output)  # its cookies
    assert "response.headers (set-cookie) has what a recording masks" in fine.output
    clean = tmp_path / "clean"
    tape(clean, Interaction("GET", "https://api.example.com/", [], b"", 200, "OK", JSON, ANSWER))
    assert tapes("check", clean).output == "1 exchange in 1 tape, 0 findings.\n"


def test_har_there_and_back(tmp_path: Path):
    binary = Interaction("GET", "https://files.example.com/b?x=%20", [], b"", 200, "OK", [], b"\xff\x00")
    tape(tmp_path / "a", FOUND)
    tape(tmp_path / "a", binary, name="files.example.com.yaml")
    made = tapes("har", tmp_path / "a")
    assert made.exit_code == 0
    (tmp_path / "a.har").write_text(made.output, "utf-8")
    assert json.loads(made.output)["log"]["version"] == "1.2"
    told = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert told.exit_code == 0, told.output
    (back,) = read(tmp_path / "b" / "api.example.com.yaml")
    assert (back.method, back.uri, back.status) == (FOUND.method, FOUND.uri, FOUND.status)
    assert json.loads(back.body) == json.loads(ANSWER)
    assert ("set-cookie", "a=[SECRET]") in back.headers
    assert read(tmp_path / "b" / "files.example.com.yaml")[0].body == binary.body
    again = tapes("import", tmp_path / "a.har", "--to", tmp_path / "b")
    assert again.exit_code == 1
    assert "--force" in again.output


def test_drift_is_told_by_field():
    now = b'{"id": 7, "choices": [{"n": 2, "text": "other", "extra": null}], "new": true}'
    assert list(answer_changes(FOUND, 429, JSON, now)) == [
        "status is 429, the tape has 200",
        "$.id is number, the tape has text",
        "$.choices[*].extra is new: null",
        "$.new is new: boolean",
    ]
    assert list(answer_changes(FOUND, 200, [("content-type", "text/html")], b"")) == [
        "content-type is text/html, the tape has application/json"
    ]
    assert list(answer_changes(FOUND, 200, JSON, ANSWER.replace(b"grA", b"x"))) == []


def test_drift_of_events_is_told_by_their_type():
    before = b'event: start\ndata: {"type": "start", "n": 1}\n\nevent: stop\ndata: {"type": "stop"}\n\n'
    found = Interaction("GET", "https://a.example/", [], b"", 200, "OK", EVENTS, before)
    now = b'event: start\ndata: {"type": "start"}\n\nevent: ping\ndata: {"type": "ping"}\n\n'
    assert list(answer_changes(found, 200, EVENTS, now)) == [
        "event start $.n is gone: the tape has number",
        "event stop $ is gone: the tape has object",
        "event stop $.type is gone: the tape has text",
        "event ping $ is new: object",
        "event ping $.type is new: text",
    ]


def test_a_field_for_a_live_check_comes_from_the_environment():
    assert header_of("Authorization: Bearer $KEY", {"KEY": "abc"}) == ("authorization", "Bearer abc")
    with pytest.raises(TapeError, match="no variable KEY"):
        header_of("Authorization: Bearer $KEY", {})
    refused = tapes("check", ".", "--live", "--header", "Authorization: x")
    assert refused.exit_code == 2
    assert "--host" in refused.output
