"""urllib3 without requests above it; it reads no environment, so the proxy is given."""

import os
import sys

import urllib3

url = sys.argv[1]
proxy = os.environ.get("HTTPS_PROXY" if url.startswith("https:") else "HTTP_PROXY")
options = {"ca_certs": os.environ["SSL_CERT_FILE"], "retries": False, "timeout": 20}
pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
response = pool.request("GET", url)
if response.status != 200:
    sys.exit(f"{response.status} {response.reason}")
print(response.data.decode())
