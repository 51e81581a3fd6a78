"""ApiService: the objects of one gateway's Kubernetes-shaped API, and its writes."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from egressproxy.kubeapi.read.objects import ObjectSource
from egressproxy.kubeapi.write.write import Write, WriteRefused, Written
from egressproxy.kubeapi.write.writer import Writer
from egressproxy.net.listening import BindError
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.loader.result import CompiledConfig
from egressproxy.processes.workers.data_plane import ConfigRefused, Guarded

log = logging.getLogger("egressproxy")


class Application(Protocol):
    """The API's interface to its process."""

    @property
    def taking(self) -> asyncio.Lock: ...  # held while a configuration is put into service
    def why_not_writable(self) -> str: ...  # "" while writes are accepted; else a sentence for people
    def memory(self) -> bytes: ...  # facts about the configuration in service for the next load
    async def put_in_service(self, fresh: CompiledConfig) -> None:
        """Raises Guarded, ConfigRefused, BindError or OSError, and has changed nothing then."""

    def tell_generation(self) -> None: ...  # in the log


class ApiService:
    """Belongs to the event loop. `sources` never change. `writer` None: read-only."""

    def __init__(
        self, application: Application, sources: Sequence[ObjectSource], loader: Loader, writer: Writer | None
    ) -> None:
        self._application = application
        self.sources = sources
        self._loader = loader
        self._writer = writer
        self._schema = b""
        self._making_schema = asyncio.Lock()

    async def schema(self) -> bytes:
        """JSON Schema of every kind: generated once, stored compressed. Raises OSError if the generation fails."""
        async with self._making_schema:  # one process for all requests
            if not self._schema:
                self._schema = zlib.compress(await self._loader.schema())
        return zlib.decompress(self._schema)

    async def write(self, writes: Sequence[Write]) -> Sequence[Written | WriteRefused | None]:
        """Write, and return a result for each write once the configuration is in service. None: repeat this write with
        its object's new version; not all are None. No other change comes into service meanwhile.
        """
        assert self._writer is not None
        application = self._application
        async with application.taking:
            if why_not := application.why_not_writable():
                return [WriteRefused(503, "ServiceUnavailable", why_not)] * len(writes)
            results = await self._writer.write(writes, application.memory, self._put_in_service)
        for write, written in zip(writes, results, strict=True):
            if isinstance(written, Written) and written.file:
                where = "/".join(filter(None, (write.namespace, written.name)))
                log.info("%s: %s %s by %s", write.verb.value, write.kind, where, write.manager)
        if any(isinstance(written, Written) and written.file for written in results):
            application.tell_generation()
        return results

    async def ask_issuing(self, query: tuple[object, ...]) -> dict[str, Any]:
        """The answer to an IssuingQuery (`write.issuing`), of which nothing is done yet. Raises WriteRefused."""
        assert self._writer is not None
        if why_not := self._application.why_not_writable():
            raise WriteRefused(503, "ServiceUnavailable", why_not)
        try:
            return await self._writer.ask_issuing(query)
        except (LoadingFailed, OSError) as error:
            raise WriteRefused(503, "ServiceUnavailable", str(error)) from None

    async def _put_in_service(self, fresh: CompiledConfig) -> None:
        """Raises WriteRefused."""
        try:
            await self._application.put_in_service(fresh)
        except Guarded as error:
            raise WriteRefused(409, "Conflict", f"refused with --guarded: {error}") from None
        except (ConfigRefused, BindError) as error:
            message = f"it cannot be put into service: {error}"
            causes = [("FieldValueInvalid", message, "spec.listeners")] if isinstance(error, BindError) else []
            raise WriteRefused(422, "Invalid", message, causes) from None
        except OSError as error:
            raise WriteRefused(503, "ServiceUnavailable", str(error)) from None
