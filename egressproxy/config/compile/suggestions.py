"""Suggestions for a reference to an object that does not exist: another group, kind or namespace, or a near name."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Collection, Sequence
from heapq import nsmallest

from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import Namespace, Secret

#: Names that are compared in one compilation to find what was meant: some 30 us each.
MAX_COMPARISONS = 50_000


class NameSuggestions:
    """What else an author may have meant by a name that leads nowhere."""

    __slots__ = ("_comparisons", "_found", "_is_of_cluster", "_namespaces", "_of_options")

    def __init__(self, resources: ResourceSet) -> None:
        self._comparisons = MAX_COMPARISONS
        self._is_of_cluster = any(each.origin.is_from_cluster for each in resources.objects)
        #: (group, kind) -> (namespace, name)
        self._found: dict[tuple[str, str], dict[tuple[str, str], None]] = defaultdict(dict)
        for group, kind, namespace, name in resources.by_key:
            self._found[group, kind][namespace, name] = None
        #: Secrets that an option of the command line has put into a namespace: they stand at no line of a file.
        self._of_options = {
            (secret.namespace, secret.name)
            for secret in resources.of(Secret)
            if secret.origin.file and not secret.origin.line
        }
        self._namespaces = {namespace for _, _, namespace, _ in resources.by_key if namespace}
        self._namespaces |= {namespace.name for namespace in resources.of(Namespace)}

    def has_namespace(self, name: str) -> bool:
        """Whether any object is in this namespace, or declares it."""
        return name in self._namespaces

    def remedy(
        self, group: str, kind: str, namespace: str, name: str, elsewhere: str, kinds: Collection[tuple[str, str]] = ()
    ) -> str:
        """The same name in another group, or of one of these other `kinds` (group, kind); in another namespace
        (`elsewhere` says what to do then); or the nearest name. "" where nothing is near.
        """
        found = self._found.get((group, kind), {})
        full_name = (namespace, name)
        groups = [other for other, known in self._found if known == kind and other != group]
        others = [each for each in sorted(kinds) if each != (group, kind)]
        others += [(other, kind) for other in groups]
        there = [each for each in dict.fromkeys(others) if full_name in self._found.get(each, ())]
        if there:
            return ", or ".join(_as_written(group, kind, *each, namespace, name) for each in there)
        homes = sorted(home for home, other in found if other == name)
        if homes:
            if kind == "Secret" and any((home, name) in self._of_options for home in homes):
                option = f"--secret {namespace}/{name}=…, or --secrets with a folder for {namespace}"
                elsewhere = f"give it as {namespace}/{name}: {option}"
            shown = ", ".join(f"{home}/{name}" for home in homes[:3]) + (" and more" if len(homes) > 3 else "")
            return f"{shown} {'are' if len(homes) > 1 else 'is'} in another namespace: {elsewhere}"
        here = [other for home, other in found if home == namespace]
        near = self._near(name, here)
        if near:
            return f"did you mean {near}?"
        if groups and not found:
            return f"write group: {groups[0]}" if groups[0] else 'write group: ""'
        shown = f"in this namespace there is {', '.join(nsmallest(5, here))}" if here else ""
        if self._is_of_cluster and kind in ("Secret", "ConfigMap"):
            read = "let the gateway's service account read it: `egressproxy rbac` prints the rule"
            return f"{shown}{'; ' if shown else ''}create it, or, if it is there, {read}"
        if kind == "Secret":
            option = f"--secret {namespace}/{name}=FOLDER or --secret-env {namespace}/{name}:KEY=VARIABLE"
            shown += f"{'; ' if shown else ''}write it, or give it to `run` and `check`: {option}"
        return shown

    def _near(self, name: str, names: Sequence[str]) -> str:
        """The nearest of these names; "" where none is, or after too many comparisons."""
        if len(names) > self._comparisons:
            return ""
        self._comparisons -= len(names)
        return next(iter(difflib.get_close_matches(name, names, 1, 0.6)), "")


def _as_written(group: str, kind: str, other_group: str, other_kind: str, namespace: str, name: str) -> str:
    written = [f"kind: {other_kind}"] if other_kind != kind else []
    written += [f"group: {other_group or chr(34) * 2}"] if other_group != group else []
    of_group = f" of group {other_group}" if other_group else ""
    return f"{other_kind} {namespace}/{name}{of_group} is there: write {', '.join(written)}"
