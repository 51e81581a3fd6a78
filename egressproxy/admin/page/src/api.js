// Requests to the gateway, and what the page knows of it. Paths are relative, since a proxy in front may add a prefix.
import { useEffect, useRef, useState } from "preact/hooks";

const KEY = "egressproxy-token";
const TIMEOUT_MS = 20_000;
// A stream with neither lines nor comments for so long is broken.
const SILENCE_MS = 45_000;
export const RETRY_MS = 2_000;

export let store;
try {
  store = sessionStorage;
} catch {} // a browser that keeps nothing

/** `problem`: why the gateway cannot be asked, or "". `asksToken`: it has refused a request without the right token. */
export const gateway = { problem: "", asksToken: false, token: store?.getItem(KEY) || "" };
let draw = () => {};

/** Calls `again` whenever that changes. */
export const onChange = (again) => (draw = again);

function know(change) {
  if (Object.keys(change).every((name) => gateway[name] === change[name])) return;
  Object.assign(gateway, change);
  draw();
}

/** The token stays in this tab, and is sent as a bearer token alone. "" forgets it. */
export function keepToken(text) {
  if (text) store?.setItem(KEY, text);
  else store?.removeItem(KEY);
  know({ token: text, asksToken: false });
}

/** The response, if it is a good one. Throws an Error with a sentence and `status`, 0 without a response. */
export async function request(path, options = {}) {
  const { token } = gateway;
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    const init = { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", ...options, headers };
    response = await fetch(path, init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    know({ problem: "The gateway does not answer." });
    throw refused(0, gateway.problem);
  }
  know({ problem: "" });
  if (response.ok) return response;
  const { message } = await response.json().catch(() => ({})); // a proxy in front answers otherwise
  if (response.status === 401 && token === gateway.token) know({ asksToken: true });
  throw refused(response.status, message || `status ${response.status}`);
}

const refused = (status, message) => Object.assign(new Error(message), { status });

export const read = async (path, options) => (await request(path, options)).json();

/** A change: with the header that no page of another site can send, and as JSON. */
export const change = (path, method = "POST", body = {}) =>
  request(path, { method, body: JSON.stringify(body), headers: { "X-Egressproxy": "page", "Content-Type": "application/json" } });

export const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();

/** The JSON at `path`, asked for again every `seconds` while the page is seen: {data, error, again}. Old data stay. */
export function usePolled(path, seconds = 10) {
  const [state, set] = useState({});
  const ask = useRef();
  useEffect(() => {
    let timer, stopped = false;
    ask.current = async () => {
      clearTimeout(timer);
      try {
        if (!document.hidden) {
          const data = await read(path);
          if (!stopped) set({ data });
        }
      } catch (error) {
        if (!stopped) set((old) => ({ ...old, error: error.message }));
      }
      if (!stopped) timer = setTimeout(ask.current, (gateway.problem ? RETRY_MS / 1000 : seconds) * 1000);
    };
    const seen = () => document.hidden || ask.current();
    document.addEventListener("visibilitychange", seen);
    set({});
    ask.current();
    return () => {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, seconds, gateway.token]);
  return { ...state, again: () => ask.current() };
}

/** Follows the stream of events at `path` until `signal`, again after failures but for wrong filters. `told` gets its state. */
export async function follow(path, signal, got, told) {
  while (!signal.aborted) {
    const cut = new AbortController();
    const stop = (signal.onabort = () => cut.abort());
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
    };
    try {
      told("connecting …");
      heard();
      const response = await request(path, { signal: cut.signal, headers: { Accept: "text/event-stream" } });
      told("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        heard();
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const each of events) {
          const fields = Object.fromEntries(each.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
          if (fields.data) got(fields.event, JSON.parse(fields.data));
        }
      }
      told("The stream has ended: trying again …");
    } catch (error) {
      if (error.status === 400) return told(error.message);
      if (!signal.aborted) told(`${error.status ? error.message : "The stream has broken off"}: trying again …`);
    } finally {
      clearTimeout(timer);
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}
