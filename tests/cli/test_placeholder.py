import re

from click.testing import CliRunner

from egressproxy.cli.main import main


def printed(*arguments):
    return CliRunner().invoke(main, ["placeholder", *arguments])


def test_each_one_is_another_one():
    first, second = printed().output, printed().output
    assert re.fullmatch(r"sk-egress-[0-9a-f]{32}\n", first)
    assert first != second


def test_it_may_begin_as_a_client_wants_it():
    assert printed("--prefix", "sk-ant-").output.startswith("sk-ant-")


def test_a_prefix_that_no_placeholder_can_have_is_refused():
    done = printed("--prefix", "a b")
    assert done.exit_code == 2
    assert "--prefix" in done.output
