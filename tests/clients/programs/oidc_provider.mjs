// node oidc_provider.mjs NODE_MODULES PORT REDIRECT_URI: a provider with its own pages for login and consent. As by default,
// it puts into an ID token what was asked for by the parameter `claims`, and leaves the rest to UserInfo.
import { generateKeyPairSync } from "node:crypto";

const [modules, port, redirect] = process.argv.slice(2);
const { default: Provider } = await import(`${modules}/oidc-provider/lib/index.js`);
const key = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "egressproxy-page", token_endpoint_auth_method: "none", redirect_uris: [redirect] }],
  jwks: { keys: [{ ...key, kid: "one", use: "sig", alg: "RS256" }] },
  cookies: { keys: ["signs"] },
  features: { claimsParameter: { enabled: true } },
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"], profile: ["name"] },
  findAccount: (_, accountId) => ({
    accountId,
    claims: () => ({ sub: accountId, email: `${accountId}@example.com`, email_verified: true, groups: ["staff"] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("listens"));
