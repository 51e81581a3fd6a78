from types import SimpleNamespace

from egressproxy.processes.loader import main


def test_what_was_asked_for_last_is_imported_before_all_else(monkeypatch):
    imported = []
    monkeypatch.setattr(main, "import_module", lambda name: imported.append(name) or SimpleNamespace(answer=print))
    prepared = main._with_module_of("egressproxy.kubeapi.write.answer:answer", iter((None, None)))
    next(prepared)
    assert imported == ["egressproxy.kubeapi.write.answer"]
    assert list(prepared) == [None, None]


def test_what_cannot_be_imported_keeps_nothing_from_being_prepared():
    assert list(main._with_module_of("os:getpid", iter((None,)))) == [None, None]
