// A login by OpenID Connect: a code with PKCE (RFC 7636), which the gateway exchanges for the ID token.
import { change, keepToken, query, store } from "./api.js";

const KEY = "egressproxy-login";
const text = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/[+/=]/g, (each) => ({ "+": "-", "/": "_" })[each] || "");
const random = () => text(crypto.getRandomValues(new Uint8Array(32)));
const here = () => location.origin + location.pathname;

/** Leaves for the issuer. `asks`: the client, scopes and claims, as the gateway has read in its document. */
export async function begin({ authorize, ...asks }) {
  if (!crypto.subtle) throw new Error("A login needs a page by https: with http, browsers have no means for it.");
  const login = { verifier: random(), state: random(), hash: location.hash };
  store.setItem(KEY, JSON.stringify(login));
  const code_challenge = text(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(login.verifier)));
  const asked = { ...asks, response_type: "code", redirect_uri: here(), state: login.state, code_challenge, code_challenge_method: "S256" };
  location.assign(authorize + (authorize.includes("?") ? "&" : "?") + query(asked));
}

/** Back from the issuer: throws an Error if that was no login of this tab, or it is refused. */
export async function end() {
  const { code, state, error, error_description = "" } = Object.fromEntries(new URLSearchParams(location.search));
  if (!state) return;
  const login = JSON.parse(store.getItem(KEY)) || {};
  store.removeItem(KEY);
  history.replaceState(null, "", location.pathname + (login.hash || ""));
  if (state !== login.state) throw new Error("This tab has begun no such login."); // anybody can write such a link
  if (!code) throw new Error(`The issuer has refused the login: ${error} ${error_description}`);
  const answer = await change("ui/oidc", "POST", { code, verifier: login.verifier, redirect_uri: here() });
  keepToken((await answer.json()).token);
}
