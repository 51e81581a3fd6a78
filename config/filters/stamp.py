"""An example of a filter of one's own: stamps requests with the team that sent them, and refuses unknown ones.

See docs/filters.md for how it is placed.
"""

from pydantic import BaseModel, ConfigDict

from egressproxy.filters import Exchange, Filter, FilterContext, Phase, Rejected


class Config(BaseModel):
    """`teams` maps a client's namespace to the name of its team."""

    model_config = ConfigDict(extra="forbid")

    teams: dict[str, str]


class Stamp(Filter):
    # It is placed once, in request-headers, and runs in the phase of the answer as well.
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS))

    def __init__(self, context: FilterContext) -> None:
        assert isinstance(context.config, Config)
        self.teams = {namespace: team.encode() for namespace, team in context.config.teams.items()}

    def request_headers(self, x: Exchange) -> None:
        team = self.teams.get(x.identity.namespace)
        if team is None:
            raise Rejected(
                f"namespace {x.identity.namespace} belongs to no team", remedy="add it to the filter's `teams`"
            )
        x.request.fields.set(b"x-team", team)
        x.note("stamp", team)

    def response_headers(self, x: Exchange) -> None:
        team = (x.notes or {}).get("stamp")
        if team is not None:
            x.response.fields.set(b"x-served-for", team)
