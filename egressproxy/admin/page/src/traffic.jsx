// Live traffic, denials, and the last hour.
import { useEffect, useState } from "preact/hooks";
import { change, follow, gateway, query, read, usePolled } from "./api.js";
import { Chart } from "./chart.jsx";
import { Act, Diff, Facts, Field, Loaded, Table, Word, moment, number, shown, time, who } from "./parts.jsx";

const KEPT = 1000;
const DRAW_MS = 250;
const SHORT = 200;
const FILTERS = [["namespace", "Namespace"], ["service_account", "Service account"], ["status", "Status"], ["reason", "Reason"], ["route", "Route"], ["backend", "Backend"]];
const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);
const mood = (line) => (shown(line.would_deny) ? "warn" : line.status >= 500 || !line.status || shown(line.reason) ? "bad" : "good");
const explainable = (line) => {
  const url = line.kind === "tunnel" ? line.authority : `http${/:443$/.test(line.authority) ? "s" : ""}://${line.authority}${shown(line.path)}`;
  const as = shown(line.namespace) && `${line.namespace}/${shown(line.service_account)}`;
  const [gateway, listener] = [shown(line.gateway), shown(line.listener)];
  return `#/explain?${query({ method: line.method, url, as, gateway, listener })}`;
};

export function Live({ params }) {
  const [filters, choose] = useState(params);
  const [rows, show] = useState([]);
  const [state, told] = useState("");
  const [lost, lose] = useState(0);
  const [paused, pause] = useState(false);
  const path = `live?${query(filters)}`;
  useEffect(() => {
    if (paused) return told("paused");
    const stop = new AbortController();
    let fresh = [], count = 0;
    follow(path, stop.signal, (event, data) => {
      if (event === "lost") lose((before) => before + data.lost);
      else fresh.push({ ...data, key: `${performance.now()} ${count++}` });
    }, told);
    const timer = setInterval(() => {
      if (!fresh.length) return;
      const newest = fresh.slice(-KEPT).reverse();
      fresh = [];
      show((before) => [...newest, ...before].slice(0, KEPT));
    }, DRAW_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [path, paused, gateway.token]);
  const submit = (event) => {
    event.preventDefault();
    show([]);
    lose(0);
    choose(Object.fromEntries(new FormData(event.target)));
  };
  return (
    <>
      <form class="tools" onSubmit={submit}>
        <Field label="Host" name="host" defaultValue={filters.host} />
        <label><input type="checkbox" name="denied" value="1" defaultChecked={filters.denied} /> Denied only</label>
        <button>Filter</button>
        <button type="button" onClick={() => pause(!paused)}>{paused ? "Resume" : "Pause"}</button>
        <button type="button" onClick={() => show([])}>Clear</button>
        <details>
          <summary>More filters</summary>
          <p class="tools">{FILTERS.map(([name, label]) => <Field label={label} name={name} defaultValue={filters[name]} />)}</p>
        </details>
      </form>
      <p role="status"><Word is={state === "live" ? "good" : "warn"}>{state}</Word>{lost > 0 && `; ${number(lost)} requests are not shown: there were more than a page takes`}</p>
      <Table
        label="Requests" rows={rows} id={(line) => line.key} empty="No request has ended yet."
        columns={[
          ["Time", (line) => time(line.time)],
          ["Status", (line) => <Word is={mood(line)}>{line.status}</Word>],
          ["Method", (line) => line.method],
          ["Destination", (line) => short(line.authority + shown(line.path)), "wide"],
          ["Reason", (line) => shown(line.reason) || shown(line.would_deny)],
          ["Client", who, "wide"],
          ["ms", (line) => number(Math.round(line.duration_ms)), "number"],
        ]}
        detail={({ key, ...line }) => <><p><a href={explainable(line)}>Explain this request</a></p><Facts of={line} /></>}
      />
    </>
  );
}

/** Puts an object in the place of the one that is served, if nothing has changed since it was worked out. */
async function apply(manifest, configuration) {
  const { namespace, name } = manifest.metadata;
  const root = `api${manifest.apiVersion.includes("/") ? "s" : ""}/${manifest.apiVersion}`;
  const { name: plural } = (await read(root)).resources.find((each) => each.kind === manifest.kind && !each.name.includes("/"));
  const place = `${root}/namespaces/${namespace}/${plural}/${name}`;
  const { resourceVersion } = (await read(place)).metadata; // what changes from here on is refused by the gateway
  if ((await read("summary")).configuration !== configuration) throw new Error("The configuration has changed meanwhile: look at the change again.");
  await change(`${place}?fieldManager=admin-page`, "PUT", { ...manifest, metadata: { ...manifest.metadata, resourceVersion } });
}

export function Denials() {
  const [minutes, choose] = useState(60);
  const found = usePolled(`denials?minutes=${minutes}`);
  const { data: summary } = usePolled("summary", 60);
  return (
    <>
      <p class="tools">
        <label>Of the last <select value={minutes} onChange={(event) => choose(event.target.value)}>
          {[5, 15, 60].map((each) => <option value={each}>{each} minutes</option>)}
        </select></label>
      </p>
      <Loaded of={found}>{({ denials, configuration }) => (
        <Table
          label="Denials" rows={denials} empty="Nothing was denied." id={(each) => [each.destination, each.method, who(each), each.reason, each.rule].join(" ")}
          columns={[
            ["Destination", (each) => each.destination, "wide"],
            ["Count", (each) => number(each.count), "number"],
            ["Method", (each) => each.method],
            ["Client", who, "wide"],
            ["Reason", (each) => each.reason],
            ["Last", (each) => time(each.last)],
          ]}
          detail={(each) => (
            <>
              <p>{each.why}</p>
              {each.allowed_now ? <p class="good">The configuration in service allows it now.</p> : each.remedy && <p>To allow it: {each.remedy}</p>}
              {each.change && <Change {...each.change} isWritable={summary?.api_writes} isOfCluster={summary?.source === "kubernetes"} action={() => apply(each.change.manifest, configuration).then(found.again)} />}
              <Facts of={{ rule: each.rule, policy: each.policy, first: moment(each.first), last: moment(each.last), request: each.request_id }} />
            </>
          )}
        />
      )}</Loaded>
    </>
  );
}

function Change({ object, file, diff, manifest, isWritable, isOfCluster, action }) {
  return (
    <details>
      <summary>Show the change that would allow it</summary>
      <p>{object}{file && ` in ${file}`}</p>
      <Diff text={diff} />
      {file ? <p>Edit the file: it is read again when it is saved.</p>
        : isWritable && manifest ? <p><Act name="Apply" action={action} done="It is in service." /></p>
        : isOfCluster ? <p>Apply it to the cluster with kubectl, or change it where the cluster's manifests are kept.</p>
        : <p>Apply it with kubectl{!isWritable && ", or here with --api-writes"}.</p>}
    </details>
  );
}

export function Hour() {
  const found = usePolled("history", 15);
  const { data: now } = usePolled("summary");
  return (
    <>
      {now && (
        <p>
          <Word is={now.ready && !now.is_rejected ? "good" : "bad"}>{!now.ready ? `Not ready: ${now.why_not_ready}` : now.is_rejected ? "The latest configuration was rejected" : "Ready"}</Word>.
          {" "}Configuration {now.configuration} is in service; routes: {number(now.routes)}, backends: {number(now.backends)}, policies: {number(now.policies)}; open connections: {number(now.open_connections)}; version {now.version}.
        </p>
      )}
      <Loaded of={found}>{({ minutes }) => <Pictures minutes={minutes} />}</Loaded>
    </>
  );
}

function Pictures({ minutes }) {
  const of = (name) => minutes.map((each) => each[name] ?? null);
  const times = minutes.map((each) => each.time);
  const sum = (name) => of(name).reduce((all, one) => all + (one || 0), 0);
  const pictures = [
    ["Requests per minute", "", [["all", "accent", of("requests")], ["denied", "bad", of("denials")], ["failed", "warn", of("failures")]]],
    ["Latency", " ms", [["p50", "accent", of("p50_ms")], ["p95", "warn", of("p95_ms")]]],
    ["Tokens per minute", "", [["tokens", "accent", of("tokens")]]],
    ["Cost per minute", "", [["cost", "accent", of("cost")]]],
  ];
  return (
    <>
      <p>{number(sum("requests"))} requests, {number(sum("denials"))} denied, {number(sum("failures"))} failed; {number(Math.round(sum("tokens")))} tokens, cost {number(sum("cost"))}.</p>
      <div class="pictures">{pictures.map(([title, unit, series]) => <Chart key={title} title={title} unit={unit} times={times} series={series} />)}</div>
      <details>
        <summary>The same in numbers</summary>
        <Table
          label="Minutes" rows={[...minutes].reverse()} id={(each) => each.time}
          columns={[
            ["Minute", (each) => time(each.time)],
            ...[["Requests", "requests"], ["Denied", "denials"], ["Failed", "failures"], ["p50, ms", "p50_ms"], ["p95, ms", "p95_ms"], ["Tokens", "tokens"], ["Cost", "cost"]]
              .map(([title, name]) => [title, (each) => number(each[name]), "number"]),
          ]}
        />
      </details>
    </>
  );
}
