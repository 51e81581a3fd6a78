"""httpx, as a script uses it: one GET."""

import sys

import httpx

response = httpx.get(sys.argv[1], timeout=20)
response.raise_for_status()
print(response.text)
