"""Filters: one file each, behind one interface (`base`), compiled into flat chains (`chain`).

The names below are what a filter of one's own is written with.
"""

from egressproxy.filters.base import BodyMode, Filter, FilterContext, Phase, Rejected
from egressproxy.model.exchange import Exchange, LocalResponse

__all__ = ["BodyMode", "Exchange", "Filter", "FilterContext", "LocalResponse", "Phase", "Rejected"]
