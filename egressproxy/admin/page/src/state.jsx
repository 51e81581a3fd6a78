// What the gateway has in service, what waits, and what would become of a request.
import { useEffect, useState } from "preact/hooks";
import { change, gateway, query, read, usePolled } from "./api.js";
import { Act, Diff, Facts, Field, Listed, Loaded, Table, Word, moment, number, shown, verdict, who } from "./parts.jsx";

const TABLE = { headers: { Accept: "application/json;as=Table;v=v1;g=meta.k8s.io" } };
const GATEWAY_API = "apis/gateway.networking.k8s.io/v1";
const KINDS = [
  ["HTTPRoute", `${GATEWAY_API}/httproutes`], ["GRPCRoute", `${GATEWAY_API}/grpcroutes`], ["TLSRoute", `${GATEWAY_API}/tlsroutes`],
  ["TCPRoute", "apis/gateway.networking.k8s.io/v1alpha2/tcproutes"], ["Gateway", `${GATEWAY_API}/gateways`],
  ["EgressPolicy", "apis/egressproxy.io/v1alpha1/egresspolicies"],
];

/** Objects of one kind in the columns of the API, a thousand at a time; an expired list begins again. */
export function Routes() {
  const [path, choose] = useState(KINDS[0][1]);
  const [found, set] = useState({});
  const [count, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    set({});
    (async () => {
      for (let rows = [], next = ""; ;) {
        try {
          const piece = await read(`${path}?${query({ limit: "1000", continue: next })}`, { ...TABLE, signal: stop.signal });
          rows = rows.concat(piece.rows);
          next = piece.metadata.continue;
          set({ data: { columns: piece.columnDefinitions, rows, isWhole: !next } });
          if (!next) return;
        } catch (error) {
          if (stop.signal.aborted) return;
          if (error.status !== 410) return set((old) => ({ ...old, error: error.message }));
          [rows, next] = [[], ""];
        }
      }
    })();
    return () => stop.abort();
  }, [path, count, gateway.token]);
  return (
    <>
      <p class="tools">
        <label>Kind <select value={path} onChange={(event) => choose(event.target.value)}>
          {KINDS.map(([name, place]) => <option value={place}>{name}</option>)}
        </select></label>
        <button onClick={() => again(count + 1)}>Refresh</button>
      </p>
      <Loaded of={found}>{({ columns, rows, isWhole }) => (
        <>
          {!isWhole && <p role="status">{number(rows.length)} are here, and more are coming …</p>}
          <Table
            label="Objects" rows={rows} id={nameOf}
            columns={columns.map(({ name }, index) => [name, (row) => (index ? verdict(row.cells[index]) : nameOf(row))])}
            detail={(row) => <Manifest path={path} row={row} />}
          />
        </>
      )}</Loaded>
    </>
  );
}

const nameOf = ({ object: { metadata } }) => [metadata.namespace, metadata.name].filter(Boolean).join("/");

function Manifest({ path, row: { object: { metadata } } }) {
  const at = path.lastIndexOf("/");
  const found = usePolled(`${path.slice(0, at)}/namespaces/${metadata.namespace}${path.slice(at)}/${metadata.name}`, 30);
  return (
    <Loaded of={found}>{({ spec, status }) => (
      <>
        {status && <><h2>Status</h2><Facts of={status} /></>}
        <h2>Specification</h2><Facts of={spec} />
      </>
    )}</Loaded>
  );
}

export function Holds() {
  const found = usePolled("holds?limit=500", 2);
  const [by, sign] = useState("");
  const [why, reason] = useState("");
  const decide = (verb, id) => () => change(`holds?${query({ [verb]: id, by, why })}`).then(found.again);
  return (
    <Loaded of={found}>{({ holds, waiting }) => (
      <>
        <p class="tools">
          <Field label="Your name, for the log" value={by} onInput={(event) => sign(event.target.value)} />
          <Field label="Why" value={why} onInput={(event) => reason(event.target.value)} />
          <span role="status">{number(waiting)} {waiting === 1 ? "request waits" : "requests wait"}.</span>
        </p>
        <Table
          label="Requests that wait" rows={holds} id={(each) => each.id} empty="No request waits for approval."
          columns={[
            ["Request", (each) => `${shown(each.method)} ${shown(each.authority)}${shown(each.path)}`, "wide"],
            ["Client", who, "wide"],
            ["Seconds left", (each) => Math.round(each.leftSeconds), "number"],
            ["Decide", (each) => <><Act name="Approve" action={decide("approve", each.id)} /><Act name="Deny" action={decide("deny", each.id)} /></>],
          ]}
          detail={(each) => <Facts of={each} />}
        />
      </>
    )}</Loaded>
  );
}

function health(hosts) {
  if (hosts.every((each) => each.state === "not watched")) return hosts.length ? "not watched" : "not used yet";
  const good = hosts.filter((each) => each.healthy && !each.ejected).length;
  return <Word is={good === hosts.length ? "good" : "bad"}>{good} of {hosts.length}</Word>;
}

export const Backends = () => (
  <Listed
    path="backends" seconds={5} of="backends" label="Backends" id={(each) => each.name} empty="No backend is in service."
    columns={[
      ["Backend", (each) => shown(each.name) || each.destination, "wide"],
      ["Healthy", ({ hosts }) => health(hosts)],
      ["Connections", (each) => `${number(each.active)} active, ${number(each.idle)} idle`],
      ["Waiting", (each) => number(each.waiting), "number"],
      ["Requests", (each) => number(each.requests), "number"],
      ["Failed", (each) => number(each.failures), "number"],
    ]}
    detail={(each) => <Facts of={{ hosts: each.hosts, "limits reached": each.limits_reached }} />}
  />
);

export const Limits = () => (
  <Listed
    path="limits" seconds={5} of="limits" label="Limits" id={(each) => [each.from, each.filter, each.name, each.gateway, each.identity, each.route].join(" ")} empty="No limit holds for a recent caller."
    columns={[
      ["Limit", (each) => each.allows, "wide"],
      ["Left", (each) => <Word is={each.left > 0 ? "" : "bad"}><meter max={each.limit} value={each.left} aria-label="left" /> {number(each.left)} of {number(each.limit)}</Word>],
      ["Resets in", (each) => each.resetSeconds == null ? "" : `${number(each.resetSeconds)} s`, "number"],
      ["From", (each) => each.from, "wide"],
      ["Caller", (each) => who(each) || "all", "wide"],
    ]}
    detail={(each) => <Facts of={each} />}
  />
);

export function Certificates() {
  return (
    <Loaded of={usePolled("certificates", 60)}>{({ certificates, credentials }) => (
      <>
        <Table
          label="Certificates" rows={certificates} id={(each) => [each.use, each.kind, each.namespace, each.name].join(" ")} empty="No certificate is in use."
          columns={[
            ["Name", (each) => `${each.kind} ${each.namespace}/${each.name}`, "wide"],
            ["Use", (each) => each.use],
            ["State", (each) => verdict(each.state)],
            ["Ends", (each) => moment(each.not_after)],
          ]}
          detail={(each) => <Facts of={{ from: moment(each.not_before), why: each.why }} />}
        />
        <h2>Credentials</h2>
        <Table
          label="Credentials" rows={credentials} empty="No filter adds a credential."
          columns={[
            ["Secret", (each) => each.secret, "wide"],
            ["Present", (each) => verdict(each.present ? "true" : "missing")],
            ["Of", (each) => `${each.from}, filter ${each.filter}`, "wide"],
          ]}
        />
      </>
    )}</Loaded>
  );
}

export const Configuration = () => (
  <Listed
    path="configurations" of="configurations" label="Configurations" id={(each) => each.time}
    columns={[
      ["Time", (each) => moment(each.time)],
      ["Result", (each) => verdict(each.result)],
      ["Number", (each) => each.number, "number"],
      ["By", (each) => each.by],
      ["Objects", (each) => number(each.objects), "number"],
      ["Problems", (each) => number(each.problems.length), "number"],
    ]}
    detail={(each) => (
      <>
        {each.problems.length > 0 && <><h2>Problems</h2><ul>{each.problems.map((text) => <li>{text}</li>)}</ul></>}
        {each.diff ? <Diff text={each.diff} /> : <p>There is no difference to show.</p>}
      </>
    )}
  />
);

const EXPLAINED = [["method", "Method"], ["url", "URL, or host:port"], ["as", "As namespace/service account"], ["gateway", "Gateway"], ["listener", "Listener"]];

export function Explain({ params }) {
  const [found, set] = useState({});
  const ask = async (values) => {
    set({ busy: true });
    try {
      set({ data: await read(`explain?${query(values)}`) });
    } catch (error) {
      set({ error: error.message });
    }
  };
  useEffect(() => {
    if (params.url) ask(params);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const { dns, ...values } = Object.fromEntries(new FormData(event.target));
    ask({ ...values, dns: dns ? "" : "0" });
  };
  return (
    <>
      <form class="tools" onSubmit={submit}>
        {EXPLAINED.map(([name, label]) => <Field label={label} name={name} required={name === "url"} defaultValue={params[name] || (name === "method" ? "GET" : "")} />)}
        <label><input type="checkbox" name="dns" defaultChecked /> Ask name servers</label>
        <button>Explain</button>
      </form>
      <p class="faint">No request is sent.</p>
      {(found.busy || found.data || found.error) && <Loaded of={found}>{Explanation}</Loaded>}
    </>
  );
}

function Explanation({ verdict: word, request, error, notes, listener, route, runnerUp, policy, backends, filters, approvals, limits, timeouts }) {
  return (
    <section aria-live="polite">
      <h2><Word is={word === "allowed" ? "good" : "bad"}>{word}</Word> {request.method} {request.url}</h2>
      {error && <p>{error.status} {error.reason}: {error.message}{error.rule && ` (${error.rule})`}</p>}
      {error?.remedy && <p>To allow it: {error.remedy}</p>}
      {notes.map((each) => <p>{each}</p>)}
      <Facts of={{ listener, route, "runner-up": runnerUp, policy, backends, filters, approvals }} />
      <details><summary>Limits and timeouts</summary><Facts of={{ limits, timeouts }} /></details>
    </section>
  );
}
