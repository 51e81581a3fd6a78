"""Credentials: which API server is asked, and as whom. They come from a kubeconfig or from the Pod's service account,
and are renewed before they end.

Kubernetes' own client reads them: client certificates, OIDC, projected tokens. It is imported here alone,
since it takes some 30 MB beside aiohttp (version 36: 84 MB).
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    FileOrData,
    KubeConfigLoader,
    KubeConfigMerger,
)

from egressproxy.kubernetes.credential_plugin import CredentialPlugin, PluginFailed
from egressproxy.run_options import ClusterOptions

#: How often what may have been renewed is looked at, in seconds.
RENEW_S: Final = 60.0
#: How long that may take.
ANSWER_S: Final = 40.0
#: Set in every Pod.
_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"


class CredentialsError(Exception):
    """The API server cannot be asked: a sentence that names the file and what is wrong with it."""


class _Complaints(logging.Handler):
    """What the client logs, and does not raise. `said` is the last of it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


_complaints: Final = _Complaints()
_logger = logging.getLogger("kubernetes.aio.config")
_logger.propagate = False
_logger.addHandler(_complaints)


class _Loader(KubeConfigLoader):  # type: ignore[misc]
    """The loader of a kubeconfig, which has a CredentialPlugin run the plugin."""

    is_refused = False
    _plugin: CredentialPlugin | None = None

    async def load_from_exec_plugin(self) -> bool:
        """Take the token or the certificate of the plugin; returns True. Raises PluginFailed."""
        if self._plugin is None:
            self._plugin = CredentialPlugin(self._user["exec"].value, self._get_base_path(self._user.path))
        status = await self._plugin.status(is_refused=self.is_refused)
        if token := status.get("token"):
            self.token = f"Bearer {token}"
        if status.get("clientCertificateData"):
            self.cert_file, self.key_file = (
                FileOrData(status, None, data_key_name=name, base64_file_content=False).as_file()
                for name in ("clientCertificateData", "clientKeyData")
            )
        return True


class Credentials:
    """Made by `load`. They belong to the event loop."""

    def __init__(self, configuration: Any, renew: Callable[[bool], Coroutine[Any, Any, object]], origin: str) -> None:
        self._configuration = configuration
        self._renew = renew
        self._origin = origin
        self._renewed_at = time.monotonic()
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def load(cls, options: ClusterOptions) -> Credentials:
        """Read them. Raises CredentialsError."""
        configuration = Configuration()
        if options.kubeconfig is None and options.context is None and os.environ.get(_IN_CLUSTER):
            origin = "the service account of the Pod"

            async def renew(is_refused: bool) -> None:
                load_incluster_config(client_configuration=configuration)
        else:
            file = str(options.kubeconfig) if options.kubeconfig is not None else None
            origin = f"kubeconfig {file or os.environ.get('KUBECONFIG') or '~/.kube/config'}"
            loader: list[_Loader] = []

            async def renew(is_refused: bool) -> None:
                if not loader:
                    found = KubeConfigMerger(file or KUBE_CONFIG_DEFAULT_LOCATION).config
                    loader.append(_Loader(found, options.context, config_base_path=None))
                loader[0].is_refused = is_refused
                await loader[0].load_and_set(configuration)

        made = cls(configuration, renew, origin)
        await made.renew()
        if urlsplit(made.host).scheme not in ("http", "https"):
            raise CredentialsError(f"{origin}: the cluster has no server with an http or https URL")
        return made

    async def renew(self, *, is_refused: bool = False) -> None:
        """Read again what may have changed; callers meanwhile wait for the same reading. `is_refused`: an API server
        has refused the current credentials. Raises CredentialsError.
        """
        self._renewed_at = time.monotonic()
        if self._renewing is None:
            _complaints.message = ""
            self._renewing = asyncio.create_task(self._renew_in_time(is_refused))
            self._renewing.add_done_callback(self._renewed)
        try:
            await asyncio.shield(self._renewing)
        except (ConfigException, PluginFailed) as error:
            raise CredentialsError(f"{self._origin}: {error}") from None
        except TimeoutError:
            raise CredentialsError(f"{self._origin} has not answered within {ANSWER_S:g} s") from None
        except OSError as error:
            raise CredentialsError(f"{self._origin}: {error.strerror or error} ({error.filename})") from None
        except Exception as error:  # of a file that is no kubeconfig, it raises nearly everything
            raise CredentialsError(f"{self._origin} cannot be read ({type(error).__name__})") from None
        if _complaints.message:
            raise CredentialsError(f"{self._origin}: {_complaints.message}")

    async def _renew_in_time(self, is_refused: bool) -> None:
        async with asyncio.timeout(ANSWER_S):
            await self._renew(is_refused)

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._renewing = None
        if not task.cancelled():
            task.exception()  # who has asked is told, if somebody waits still

    @property
    def host(self) -> str:
        """The URL of the API server."""
        return str(self._configuration.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The URL of a proxy on the way to it. Proxies of the environment do not count: one may be this gateway."""
        return self._configuration.proxy or None

    @property
    def server_name(self) -> str | None:
        """The name in its certificate, where that is not the host of the URL."""
        return self._configuration.tls_server_name or None

    def files(self) -> tuple[object, ...]:
        """The state of the files that a TLS context is made of: another one asks for another context."""
        found: list[object] = [self.host, self._configuration.verify_ssl]
        for name in (self._configuration.ssl_ca_cert, self._configuration.cert_file, self._configuration.key_file):
            found.append((name, os.stat(name).st_mtime_ns) if name and os.path.exists(name) else name)
        return tuple(found)

    def tls_context(self) -> ssl.SSLContext:
        """For connections to the API server. Raises CredentialsError."""
        configuration = self._configuration
        try:
            context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # CAs of clusters are often older than the strict rules
            if configuration.cert_file:
                context.load_cert_chain(configuration.cert_file, configuration.key_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CredentialsError(f"{self._origin}: its certificates cannot be used: {error}") from None
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def authorization(self, refused: str | None = None) -> str | None:
        """The field of a request, None where a client certificate says who asks. `refused` is the field that an API
        server has just not taken, "" for none: another one is got, unless it is there by now. Raises CredentialsError.
        """
        if refused is not None:
            if (await self._field() or "") == refused:
                await self.renew(is_refused=True)
        elif time.monotonic() - self._renewed_at > RENEW_S:
            await self.renew()
        return await self._field()

    async def _field(self) -> str | None:
        found: str | None = await self._configuration.get_api_key_with_prefix("BearerToken")
        return found

    def __repr__(self) -> str:
        return f"Credentials({self._origin})"
