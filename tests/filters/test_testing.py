import asyncio
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.errors import Reason
from egressproxy.filters import Authority, CallerIdentity, Phase, Rejected
from egressproxy.filters.testing import FilterBuildError, FilterHarness, exchange, response

CONFIG = Path(__file__).parents[2] / "config"
HEAD = "import asyncio\nfrom egressproxy.filters import *\nfrom pydantic import BaseModel\n"
URL = "https://api.example.com/v1?n=1"


@pytest.fixture
def harness(tmp_path):
    """Makes one of the methods of a filter; `more` is for FilterHarness."""

    def made(body, phase="request-headers", config=None, extra="", **more):
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "f.py").write_text(f"{HEAD}{extra}\nclass F(Filter):\n{lines}")
        return FilterHarness({"path": "f.py", **(config or {})}, phase=phase, folder=tmp_path, **more)

    return made


def get(**headers):
    return exchange("GET", URL, headers)


def test_an_exchange_is_what_a_filter_sees_of_a_request():
    x = exchange(
        "POST", "http://[2001:db8::1]:8080", [("a", "1"), ("a", "2")],
        identity="agents/crawler", backend="agents/b", backend_is_secure=True, addresses=["192.0.2.7"],
    )  # fmt: skip
    assert (x.method, x.scheme, x.path, x.request.path) == (b"POST", b"http", b"/", b"/")
    assert (x.authority.host, x.authority.port, x.is_tunnel) == ("2001:db8::1", 8080, False)
    assert x.identity == CallerIdentity("agents", "crawler")
    assert (x.backend, x.backend_is_secure, [str(ip) for ip in x.addresses]) == ("agents/b", True, ["192.0.2.7"])
    assert x.request.fields.get_all(b"a") == [b"1", b"2"]
    x = get()
    assert (x.path, x.request.path, x.authority) == (b"/v1", b"/v1?n=1", Authority("api.example.com", 443))


def test_a_tunnel_has_an_authority_and_no_path():
    x = exchange("CONNECT", "api.example.com:443")
    assert (x.is_tunnel, x.kind, str(x.authority), x.path) == (True, "tunnel", "api.example.com:443", b"-")


@pytest.mark.parametrize("url", ["/v1", "ftp://a.example/", "http://a.example/#x", "http:///x", "http://u@a.example/"])
def test_a_url_that_no_request_has_is_refused(url):
    with pytest.raises(ValueError):
        exchange("GET", url)


def test_fields_that_no_filter_sees_are_refused():
    with pytest.raises(ValueError, match="filters do not see Host"):
        exchange("GET", URL, {"Host": "b.example"})
    with pytest.raises(ValueError, match="Content-Length"):
        response(200, {"Content-Length": "1"})


def test_every_phase_runs_in_order_and_complete_at_the_end(harness):
    methods = "runs_in = frozenset(Phase)\nran = []\n"
    for phase in Phase:
        more = ", data, last" if "BODY" in phase.name else ""
        methods += f"def {phase.method}(self, x{more}):\n    self.ran.append('{phase.value}')\n"
        methods += "    return data\n" if more else "    x.note('ran', self.ran)\n"
    methods += "def complete(self, x):\n    self.ran.append(f'complete {x.status}')\n"
    result = harness(methods).run(get(), request_body=b"q", response=response(201), response_body=b"r")
    assert result.exchange.notes["ran"] == [*(phase.value for phase in Phase), "complete 201"]


def test_of_a_tunnel_two_phases_run(harness):
    methods = "runs_in = frozenset(Phase) - {Phase.REQUEST_BODY, Phase.RESPONSE_BODY}\n"
    for phase in Phase:
        if "BODY" not in phase.name:
            methods += f"def {phase.method}(self, x):\n    x.note('{phase.value}', 1)\n"
    result = harness(methods).run(exchange("CONNECT", "a.example:443"))
    assert {"request-headers", "connect"} == result.exchange.notes.keys()


def test_one_phase_runs_alone_and_without_complete(harness):
    both = "runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST))\n"
    both += (
        "def request_headers(self, x):\n    x.note('early', 1)\ndef backend_request(self, x):\n    x.note('late', 1)\n"
    )
    both += "def complete(self, x):\n    x.note('completed', 1)\n"
    result = harness(both).run(get(), phases=[Phase.BACKEND_REQUEST])
    notes = result.exchange.notes
    assert "late" in notes
    assert not {"early", "completed"} & notes.keys()


def test_a_refusal_is_in_the_result_and_complete_sees_it(harness):
    filter_ = harness(
        "def request_headers(self, x):\n    raise Rejected('not today', status=429, remedy='later', retry_after_s=9)\n"
        "def complete(self, x):\n    x.note('end', (x.status, x.reason))\n",
        source="EgressPolicy a/p",
        fail_open=True,
    )
    result = filter_.run(get())
    assert isinstance(result.error, Rejected)
    assert (result.status, result.error.message, result.error.remedy) == (429, "not today", "later")
    assert (result.error.retry_after_s, result.error.rule) == (9, "EgressPolicy a/p")
    assert result.exchange.notes["end"] == (429, Reason.FILTER_REJECTED)
    assert result.failures == ()
    with pytest.raises(AssertionError, match="not today"):
        _ = result.response


def test_a_failure_says_what_the_log_says_and_no_word_of_the_exception(harness):
    body = "def request_headers(self, x):\n    raise KeyError('hunter2')\n"
    result = harness(body, name="mine").run(get())
    assert (result.status, result.error.reason) == (502, Reason.FILTER_FAILED)
    assert result.error.detail == "filter mine: KeyError at f.py:7"
    assert "KeyError" in result.failures[0]
    assert "hunter2" not in repr(result)
    result = harness(body, name="mine", fail_open=True).run(get())
    assert (result.status, result.error) == (200, None)
    assert "failed in phase request-headers: KeyError" in result.failures[0]


def test_a_response_of_the_filter_passes_its_response_phase_and_no_backend_is_asked(harness):
    filter_ = harness(
        "runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST, Phase.RESPONSE_HEADERS))\n"
        "def request_headers(self, x):\n    return LocalResponse(204, ((b'x-a', b'1'),), b'')\n"
        "def backend_request(self, x):\n    x.note('asked', 1)\n"
        "def response_headers(self, x):\n    x.response.fields.set(b'x-b', b'2')\n"
    )
    result = filter_.run(get())
    assert result.local_response.status == result.status == 204
    assert list(result.response.fields) == [(b"x-a", b"1"), (b"x-b", b"2")]
    assert "asked" not in (result.exchange.notes or {})
    filter_ = harness(
        "def response_headers(self, x):\n    return LocalResponse(503, (), b'later')\n", "response-headers"
    )
    result = filter_.run(get(), response_body=b"from the backend")
    assert (result.status, result.response_body) == (503, b"later")


def test_a_response_in_the_connect_phase_is_a_failure_as_it_is_in_the_gateway(harness):
    result = harness("def connect(self, x):\n    return LocalResponse(200, body=b'hello')\n", "connect").run(get())
    assert result.response_body == b""
    assert (result.status, result.local_response) == (502, None)


def test_a_body_goes_through_in_the_pieces_in_which_it_arrives(harness):
    stream = "def request_body(self, x, data, last):\n    return data.upper() + (b'!' if last else b'')\n"
    result = harness(stream, "request-body").run(get(), request_body=[b"ab", b"c", b""])
    assert result.request_pieces == (b"AB", b"C", b"!")
    assert result.request_body == b"ABC!"
    buffered = "body_mode = BodyMode.BUFFER\nmax_buffer_bytes = 3\n"
    buffered += "def response_body(self, x, data, last):\n    return data[::-1]\n"
    result = harness(buffered, "response-body").run(get(), response_body=[b"ab", b"c"])
    assert result.response_pieces == (b"", b"cba")
    assert harness(buffered, "response-body").run(get(), response_body=[b"ab", b"cd"]).status == 502


def test_a_body_that_is_not_there_passes_no_filter(harness):
    result = harness("def request_body(self, x, data, last):\n    raise Rejected('x')\n", "request-body").run(get())
    assert (result.error, result.request_body) == (None, b"")


def test_what_waits_is_awaited_under_its_timeout(harness):
    waits = "async def {}(self, x{}):\n    await asyncio.sleep(0)\n    return {}\n"
    result = harness(waits.format("request_headers", "", "LocalResponse(299)")).run(get())
    assert result.status == 299
    body = harness(waits.format("request_body", ", data, last", "data * 2"), "request-body")
    assert body.run(get(), request_body=[b"a", b"b"]).request_body == b"aabb"
    never = "async def request_headers(self, x):\n    await asyncio.Event().wait()\n"
    result = harness(never, timeout_s=0.01).run(get())
    assert (result.status, result.error.message) == (502, "filter test did not answer in time")


async def test_in_a_running_loop_it_is_awaited(harness):
    loops = "async def request_headers(self, x):\n    x.note('loop', asyncio.get_running_loop())\n"
    filter_ = harness(loops)
    result = await filter_.run_async(get())
    assert result.exchange.notes["loop"] is asyncio.get_running_loop()
    with pytest.raises(RuntimeError, match="run_async"):
        filter_.run(get())


def test_secrets_come_by_their_label_and_only_those_that_the_config_names(harness):
    body = (
        "def __init__(self, context):\n    self.key = context.secrets['signing/key'].reveal()\n"
        "def request_headers(self, x):\n    x.request.fields.set(b'x-key', self.key)\n"
    )
    config = {"secrets": [{"name": "signing", "key": "key"}]}
    result = harness(body, config=config, secrets={"signing/key": b"s3cret"}).run(get())
    assert result.request.fields.get(b"x-key") == b"s3cret"
    with pytest.raises(ValueError, match="does not refer to the Secret other/key"):
        harness(body, config=config, secrets={"other/key": b"s3cret"})
    with pytest.raises(FilterBuildError, match="KeyError while F was built"):
        harness(body, config=config)


def test_what_is_wrong_is_said_as_check_says_it(harness):
    with pytest.raises(FilterBuildError, match=r"EgressPolicy test/policy: filter test .*config\.nmae: unknown field"):
        harness("pass", config={"nmae": 1})
    with pytest.raises(FilterBuildError, match="cannot run in phase"):
        FilterHarness({"limit": 1}, phase=Phase.CONNECT, type="egressproxy.io/RequestRateLimit:v1")
    with pytest.raises(FilterBuildError, match="unknown type"):
        FilterHarness({}, phase="connect", type="nobody.example/It:v1")
    with pytest.raises(FilterBuildError, match=r"f.py:\d+: SyntaxError"):
        harness("def (")
    with pytest.raises(FilterBuildError, match="did you mean this by `request_header`"):
        harness("def request_header(self, x):\n    pass\n")


def test_check_prints_the_same_sentence(tmp_path):
    policy = yaml.safe_load((CONFIG / "filters" / "stamp.yaml").read_text())
    policy["metadata"]["namespace"] = "default"
    (extension,) = policy["spec"]["extensions"]
    extension["config"]["config"] = {"teems": {}}
    (tmp_path / "stamp.yaml").write_text(yaml.safe_dump(policy))
    for name in ("filters/stamp.py", "minimal.yaml"):
        shutil.copy(CONFIG / name, tmp_path)
    with pytest.raises(FilterBuildError) as caught:
        FilterHarness(extension["config"], phase=extension["phase"], folder=tmp_path, name="stamp", source="-")
    checked = CliRunner().invoke(main, ["check", str(tmp_path)]).output
    assert "config.teems: unknown field (did you mean teams?)" in checked
    assert str(caught.value).removeprefix("-: ") in checked


def test_a_built_in_type_can_be_tried_too():
    config = {"request": {"set": [{"name": "X-Team", "value": "research"}]}}
    policy = FilterHarness(config, phase="backend-request", type="HeaderPolicy")
    assert policy.run(get()).request.fields.get(b"x-team") == b"research"


def test_the_harness_shows_the_choice_of_backends_the_body_of_an_attempt_and_the_wish_for_another(tmp_path):
    (tmp_path / "f.py").write_text(
        "from egressproxy.filters import Filter, NextAttempt, Phase\n"
        "class F(Filter):\n"
        "    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))\n"
        "    needs_body = True\n"
        "    def request_headers(self, x):\n"
        "        x.exclude_backend('a/b')\n"
        "        x.prefer_backend('a/c')\n"
        "    def backend_request(self, x):\n"
        "        x.request.fields.set(b'x-length', str(len(x.body)).encode())\n"
        "    def backend_response(self, x):\n"
        "        assert x.body is None\n"
        "        raise NextAttempt('it is empty')\n"
    )
    harness = FilterHarness({"path": "f.py"}, phase="request-headers", folder=tmp_path)
    result = harness.run(exchange("POST", "http://a.example/"), request_body=[b"ab", b"c"])
    assert (result.excluded_backends, result.preferred_backend) == ({"a/b"}, "a/c")
    assert result.request.fields.get(b"x-length") == b"3"
    assert (type(result.error).__name__, result.status) == ("NextAttempt", 502)


def test_trailers_are_what_the_filter_leaves_of_them(harness):
    looks = "def response_headers(self, x):\n    pass\n"
    sees = looks + "async def response_trailers(self, x, fields):\n    fields.set(b'x-b', b'2')"
    more = {"response_body": b"hi", "response_trailers": {"X-A": "1"}}
    assert list(harness(sees, phase="response-headers").run(get(), **more).response_trailers) == [
        (b"x-a", b"1"), (b"x-b", b"2")
    ]  # fmt: skip
    assert list(harness(looks, phase="response-headers").run(get(), **more).response_trailers) == []
    body = "def request_body(self, x, data, last):\n    return data\n"
    done = harness(body, phase="request-body").run(get(), request_body=b"hi", request_trailers={"X-A": "1"})
    assert list(done.request_trailers) == []


def test_of_a_call_that_has_failed_the_log_has_the_reason_and_not_the_text(tmp_path: Path):
    (tmp_path / "f.py").write_text(
        "from egressproxy.filters import *\n"
        "class F(Filter):\n"
        "    async def request_headers(self, x):\n"
        "        raise CallFailed(Reason.CONNECT_REFUSED, 'the text')\n"
    )
    harness = FilterHarness({"path": "f.py"}, phase="request-headers", folder=str(tmp_path), name="judge")
    result = harness.run(exchange("GET", "http://a.example/"))
    assert result.error is not None
    assert result.error.detail == "filter judge: CallFailed (upstream_refused) at f.py:4"
