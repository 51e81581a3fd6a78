"""Gateways that the tests of a module share where neither the start nor the end is what they test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.process import SharedGateway


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGateway]:
    yield from _gateway(tmp_path_factory)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGateway]:
    """Another one, for tests of two gateways."""
    yield from _gateway(tmp_path_factory)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGateway]:
    yield from _gateway(tmp_path_factory, "--workers", "2")


def _gateway(folders: pytest.TempPathFactory, *arguments: str) -> Iterator[SharedGateway]:
    gateway = SharedGateway(folders.mktemp("shared") / "gw", *arguments)
    yield gateway
    gateway.stop()
