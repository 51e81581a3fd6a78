// undici with its agent that reads HTTP_PROXY and HTTPS_PROXY: a CONNECT for http:// URLs, too.
const { EnvHttpProxyAgent, request } = require("undici");

async function main(url) {
  const { statusCode, body } = await request(url, { dispatcher: new EnvHttpProxyAgent() });
  const text = await body.text();
  if (statusCode !== 200) throw new Error(`${statusCode} ${text}`);
  console.log(text);
}

// The reason stands in the cause, as with fetch.
main(process.argv[2]).catch((error) => {
  console.error(error, error.cause ?? "");
  process.exit(1);
});
