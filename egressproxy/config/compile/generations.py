"""Generations: how many versions of an object's spec were seen, and since when an object is there."""

from __future__ import annotations

from hashlib import blake2b

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.reading.load import ResourceSet
from egressproxy.model.published_object import Key


def first_seen(resources: ResourceSet, previous: Compiled | None) -> dict[Key, str]:
    """Since when the objects are there that do not say it: the time of their file when they were first read."""
    before = previous.created if previous is not None else {}
    times = (
        (resource.key, before.get(resource.key) or resource.origin.time)
        for resource in resources.objects
        if resource.metadata.creation_timestamp is None
    )
    return {key: time for key, time in times if time}


def generations_of(resources: ResourceSet, previous: Compiled | None) -> tuple[dict[Key, int], dict[Key, bytes]]:
    """`metadata.generation` of everything that has a spec: as written, else the number of specs that were seen."""
    generations: dict[Key, int] = {}
    written: dict[Key, bytes] = {}
    for resource in resources.objects:
        spec = getattr(resource, "spec", None)
        if spec is None:
            continue
        key = resource.key
        digest = written[key] = blake2b(resource.model_dump_json(include={"spec"}).encode(), digest_size=16).digest()
        if resource.metadata.generation is not None:
            generations[key] = resource.metadata.generation
        elif previous is None or key not in previous.written:
            generations[key] = 1
        else:
            generations[key] = previous.generations.get(key, 0) + (previous.written[key] != digest)
    return generations, written
