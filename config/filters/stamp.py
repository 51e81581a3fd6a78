"""An example of a filter of one's own: tells the upstream who pays for a request, and refuses teams that nobody knows.

See docs/filters.md for how it is placed.
"""

from pydantic import BaseModel, ConfigDict

from egressproxy.filters import Exchange, Filter, FilterContext, Phase, Rejected


class Config(BaseModel):
    """`teams` maps what a client may say in X-Team to the cost center that pays for it."""

    model_config = ConfigDict(extra="forbid")

    teams: dict[str, str]


class Stamp(Filter):
    # It is placed once, in request-headers, and runs in the phase of the answer as well.
    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS))

    def __init__(self, context: FilterContext) -> None:
        assert isinstance(context.config, Config)
        self.centers = {team.encode(): center.encode() for team, center in context.config.teams.items()}
        self.remedy = f"say one of these in X-Team: {', '.join(sorted(context.config.teams))}"

    def request_headers(self, x: Exchange) -> None:
        if x.is_tunnel:
            return  # what is said inside of it is between the client and the server
        x.request.fields.remove(b"x-cost-center")  # ours to say
        team = x.request.fields.get(b"x-team")
        if team is None:
            return
        center = self.centers.get(team)
        if center is None:
            raise Rejected("the team in X-Team is not known", remedy=self.remedy)
        x.request.fields.set(b"x-cost-center", center)
        x.note("stamp", center)

    def response_headers(self, x: Exchange) -> None:
        center = (x.notes or {}).get("stamp")
        if center is not None:
            x.response.fields.set(b"x-paid-by", center)
