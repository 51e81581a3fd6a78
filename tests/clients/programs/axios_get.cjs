// axios: it reads HTTP_PROXY and HTTPS_PROXY by itself.
const axios = require("axios");

axios
  .get(process.argv[2], { timeout: 20000, responseType: "text" })
  .then((response) => console.log(response.data))
  .catch((error) => {
    console.error(error.message, error.response?.status, error.response?.statusText, error.response?.data);
    process.exit(1);
  });
