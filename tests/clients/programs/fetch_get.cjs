// The fetch that comes with Node: it knows no proxy, so it is served by base URL alone.
fetch(process.argv[2])
  .then(async (response) => {
    const text = await response.text();
    if (!response.ok) throw new Error(`${response.status} ${response.statusText} ${text}`);
    console.log(text);
  })
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
