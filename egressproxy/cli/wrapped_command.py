"""`egressproxy run -- CMD`: a gateway for as long as one command runs.

Three processes: this one, which waits; the gateway, in its own session, so that the terminal's Ctrl-C reaches only the
command; and the command, in the same process group as without us. The kernel ends the other two when this one dies.
Signals to this process are forwarded to the command, except those of a terminal, which reach the whole group.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from egressproxy.cli.client_settings import NO_LOGIN, ClientSettings, Login, Proxy, inherited
from egressproxy.cli.serving import serve
from egressproxy.net.process import close_memory
from egressproxy.processes.forward_listeners import ForwardListener
from egressproxy.run_options import RunOptions

if TYPE_CHECKING:
    from egressproxy.tapes import Run

#: The exit status of `env`, `timeout` and `docker run` for their own failures.
_FAILED: Final = 125
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127

_FORWARDED: Final = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
#: Source: prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
#: Longer than the gateway needs behind its drain timeout, and with tapes that are still to be written.
_END_S: Final = 5.0
_TAPES_END_S: Final = 60.0


class _Signalled(Exception):
    """A signal came before the start of the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class NotUsable(Exception):
    """The gateway runs, but the command cannot use it; the message gives the reason."""


def run_wrapped(
    options: RunOptions,
    command: Sequence[str],
    settings: ClientSettings,
    login: Login,
    ca: Path | None,
    listener: str,
    tapes: Run | None = None,
) -> int:
    """Serve until the command has ended; returns its exit status, or ends with its signal. `login`: the command's
    credentials for the gateway. `ca`, `listener`: as in the options. With `tapes` it is 1 where a strict replay was not
    complete.
    """
    if not shutil.which(command[0]):
        return _not_run(command[0])
    close_memory()  # the command is of the same user
    ended_by = 0
    status = _FAILED
    end_s = _END_S if tapes is None else _TAPES_END_S
    try:
        with ExitStack() as files, _Signals() as signals, _Gateway(options, end_s) as gateway:
            listeners = gateway.wait_until_ready()
            if listeners is None:
                return _FAILED  # the gateway has printed the reason
            variables = _variables(chosen_listener(listeners, listener), settings, login, ca, files)
            signals.block()
            status = _run(command, inherited(os.environ) | variables, gateway, signals)
    except _Signalled as signalled:
        ended_by = signalled.number
    except NotUsable as problem:
        click.echo(f"egressproxy: {problem}", err=True)
    if tapes is not None:
        status = _tell_tapes(tapes, status)
    if status < 0:
        ended_by = -status
    return _die_by(ended_by) if ended_by else status


def _tell_tapes(tapes: Run, status: int) -> int:
    """Print what was recorded and played, unless the gateway has failed; returns the status of the run."""
    from egressproxy.cli.styled_lines import printable

    report = tapes.finish()
    for line in report.lines() if status != _FAILED else ():
        click.echo(f"egressproxy: {printable(line)}", err=True)
    return status or int(not report.is_complete)


def _run(command: Sequence[str], environment: Mapping[str, str], gateway: _Gateway, signals: _Signals) -> int:
    """Run the command; returns its exit status, or the negative number of its signal."""
    parent = os.getpid()

    def prepare() -> None:
        signals.restore()
        _end_with(parent, signal.SIGTERM)

    try:
        # No thread is here that could hold a lock at the fork.
        child = subprocess.Popen(command, env=environment, preexec_fn=prepare, close_fds=False)  # noqa: S603
    except OSError:
        return _not_run(command[0])
    is_told = False
    while (status := child.poll()) is None:
        if not is_told and gateway.has_ended():
            # Another process may take the port from now on.
            click.echo(f"egressproxy: the gateway has ended, so that {command[0]} is ended, too", err=True)
            is_told = True
            child.terminate()
        came = signal.sigwaitinfo((*_FORWARDED, signal.SIGCHLD))
        if came.si_signo != signal.SIGCHLD and came.si_code <= 0:  # of a process; the kernel's own are a terminal's
            child.send_signal(came.si_signo)
    return _FAILED if is_told else status


def _not_run(name: str) -> int:
    if os.path.exists(name) if "/" in name else shutil.which(name, os.F_OK):
        click.echo(f"egressproxy: {name} cannot be executed", err=True)
        return _NOT_EXECUTABLE
    click.echo(f"egressproxy: {name}: there is no such command", err=True)
    return _NOT_FOUND


def chosen_listener(listeners: Sequence[ForwardListener], name: str) -> ForwardListener | None:
    """The `name` listener, or the only one; None without both. Raises NotUsable."""
    fitting = [each for each in listeners if f"/{each.name}".endswith(f"/{name}")] if name else [*listeners]
    names = ", ".join(each.name for each in listeners) or "none"
    if len(fitting) > 1:
        raise NotUsable(f"there are several forward-proxy listeners ({names}): name one of them with --listener")
    if name and not fitting:
        raise NotUsable(f"--listener {name}: no forward-proxy listener has that name; there are: {names}")
    return fitting[0] if fitting else None


def proxy_of(listener: ForwardListener, login: Login = NO_LOGIN) -> Proxy:
    """The listener as clients on this machine reach it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.address, listener.address)  # noqa: S104
    return Proxy("https" if listener.is_tls else "http", host, listener.port, login)


def _variables(
    chosen: ForwardListener | None, settings: ClientSettings, login: Login, ca: Path | None, files: ExitStack
) -> dict[str, str]:
    """The command's variables. Their files exist until `files` ends. Raises NotUsable."""
    from egressproxy.cli.trust_bundle import TrustProblem, certificates, is_root, read_ca, write_trust

    if chosen is None and not settings.base_urls:
        raise NotUsable("there is no forward-proxy listener that clients could use: add one, or give --base-url")
    trusted = ""
    if chosen is not None:
        settings = replace(settings, proxy=proxy_of(chosen, login))
        trusted = chosen.signing_ca
    try:
        if ca is not None:
            trusted += read_ca(ca)
        if trusted:
            if not any(map(is_root, certificates(trusted))):
                click.echo(
                    "egressproxy: the CA of opened tunnels is signed by another, which many clients have to have: give"
                    " --ca with its ca.crt",
                    err=True,
                )
            folder = Path(files.enter_context(TemporaryDirectory(prefix="egressproxy-")))
            bundle, store = folder / "bundle.pem", folder / "bundle.p12"
            write_trust(trusted, bundle, store)
            settings = replace(settings, bundle=bundle, java_store=store)
    except TrustProblem as problem:
        raise NotUsable(str(problem)) from None
    except OSError as error:
        raise NotUsable(f"{error.filename}: {error.strerror or error}") from None
    return settings.variables(os.environ.get("JAVA_TOOL_OPTIONS", ""))


class _Signals:
    """The handling of signals to this process: at first they end all, later they wait for `sigwaitinfo`."""

    def __enter__(self) -> _Signals:
        self._before: dict[signal.Signals, Any] = {}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, and shells for what is in background
                self._before[number] = signal.signal(number, _raise)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What comes from here on has no one to go to any more."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def block(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, signal.SIGCHLD))

    def restore(self) -> None:
        """Restore the original signal mask, in the command's process. A signal before its exec ends that process."""
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)  # a signal for our handler would be lost at the exec
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class _Gateway:
    """The process that serves."""

    def __init__(self, options: RunOptions, end_s: float) -> None:
        self._options = options
        self._end_s = end_s
        self._pid = 0
        self._status: int | None = None

    def __enter__(self) -> _Gateway:
        parent = os.getpid()
        self._ready, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ready)
            _serve(self._options, parent, write_end)
        os.close(write_end)
        return self

    def wait_until_ready(self) -> list[ForwardListener] | None:
        """Its forward-proxy listeners; None where it has ended instead. Raises _Signalled."""
        with open(self._ready, "rb", closefd=False) as pipe:
            listeners = pipe.read()
        return [ForwardListener(*each) for each in json.loads(listeners)] if listeners else None

    def has_ended(self) -> bool:
        if self._status is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self._status = status
        return self._status is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain the gateway, and kill it after a timeout."""
        os.close(self._ready)
        if self.has_ended():
            return
        descriptor = os.pidfd_open(self._pid)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            os.kill(self._pid, signal.SIGTERM)
            if not ended.poll((self._options.drain_timeout_s + self._end_s) * 1000):
                os.kill(self._pid, signal.SIGKILL)
                ended.poll()
        finally:
            os.close(descriptor)
            self.has_ended()


def _serve(options: RunOptions, parent: int, write_end: int) -> NoReturn:
    """The gateway's process, from its fork to its end."""
    status = _FAILED
    try:
        for number in _FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _end_with(parent, signal.SIGTERM)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # what is typed is for the command

        def started(listeners: Sequence[ForwardListener]) -> None:
            with open(write_end, "w", encoding="utf-8") as pipe:
                json.dump(listeners, pipe)

        status = serve(options, started)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _end_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this signal when the parent dies."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_FAILED)


_prctl: Callable[..., int] = ctypes.CDLL(None).prctl


def _die_by(number: int) -> int:
    """End with the command's signal, for shells and supervisors; the first process of a container cannot."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's core is the one to look at
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    return 128 + number


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Signalled(number)
