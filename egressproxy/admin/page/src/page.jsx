// The admin page: a frame with the view that the fragment of the address names, such as #/denials.
import { render } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { RETRY_MS, gateway, keepToken, onChange, read, request } from "./api.js";
import { begin, end } from "./login.js";
import { Backends, Certificates, Configuration, Explain, Holds, Limits, Routes } from "./state.jsx";
import { Denials, Hour, Live } from "./traffic.jsx";

const VIEWS = [
  ["hour", "Last hour", Hour],
  ["live", "Live", Live],
  ["denials", "Denials", Denials],
  ["routes", "Routes", Routes],
  ["backends", "Backends", Backends],
  ["limits", "Limits", Limits],
  ["holds", "Holds", Holds],
  ["certificates", "Certificates", Certificates],
  ["explain", "Explain", Explain],
  ["configuration", "Configuration", Configuration],
];

function here() {
  const [name, params] = location.hash.slice(2).split("?");
  const view = VIEWS.find((each) => each[0] === name) || VIEWS[0];
  return { view, params: Object.fromEntries(new URLSearchParams(params)), at: location.hash };
}

function Page({ refusal }) {
  const [place, go] = useState(here);
  const main = useRef();
  const { problem, asksToken, token } = gateway;
  const { view: [name, title, View], params, at } = place;
  useEffect(() => {
    const moved = () => {
      go(here());
      main.current.focus();
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!problem) return;
    const timer = setInterval(() => request("healthz").catch(() => {}), RETRY_MS);
    return () => clearInterval(timer);
  }, [problem]);
  useEffect(() => {
    document.title = `${title} – egressproxy`;
  }, [title]);
  return (
    <>
      <header>
        <button class="skip" onClick={() => main.current.focus()}>To the content</button>
        <strong>egressproxy</strong>
        <nav aria-label="Views">
          {VIEWS.map(([each, label]) => <a href={`#/${each}`} aria-current={each === name ? "page" : undefined}>{label}</a>)}
        </nav>
        {token && <button onClick={() => keepToken("")}>Sign out</button>}
      </header>
      {(problem || refusal) && <p class="banner" role="alert">{problem ? `${problem} Trying again …` : refusal}</p>}
      {asksToken && <SignIn isRefused={token} />}
      <main ref={main} tabindex="-1">
        <h1>{title}</h1>
        <Guarded key={at} View={View} params={params} />
      </main>
    </>
  );
}

function Guarded({ View, params }) {
  const [error] = useErrorBoundary();
  return error ? <p class="bad" role="alert">This view has failed: {error.message}</p> : <View params={params} />;
}

function SignIn({ isRefused }) {
  const [login, offer] = useState();
  const [problem, tell] = useState(isRefused && "The token is refused.");
  useEffect(() => {
    read("ui/oidc").then(offer, ({ status, message }) => status === 503 && tell(message));
  }, []);
  const submit = (event) => {
    event.preventDefault();
    keepToken(new FormData(event.target).get("token").trim());
  };
  return (
    <form class="banner tools" onSubmit={submit}>
      {login && <button type="button" onClick={() => begin(login).catch((error) => tell(error.message))}>Sign in at {new URL(login.authorize).host}</button>}
      <label>Token (of --api-token-file) <input type="password" name="token" required autocomplete="off" /></label>
      <button>Sign in</button>
      <span role="status">{problem || "It is kept in this tab only."}</span>
    </form>
  );
}

const refusal = await end().catch((error) => error.message);
const draw = () => render(<Page refusal={refusal} />, document.getElementById("page"));
onChange(draw);
draw();
