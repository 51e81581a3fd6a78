"""Load over HTTP/2: runs h2load (Debian's nghttp2-client) and says its counts as one line of JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONNECTIONS = 8
STREAMS = 32


def main() -> int:
    program, url, seconds, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="h2load-") as folder:
        log = Path(folder) / "requests"
        command = [
            program, "-D", seconds, "-c", str(CONNECTIONS), "-m", str(STREAMS), "-t", "1", "--log-file", str(log),
            *options, url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = log.read_text("ascii").splitlines() if log.exists() else []
    counts = re.search(
        r"requests: (\d+) total.* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout
    )
    if done.returncode or counts is None:
        print((done.stderr or done.stdout)[-300:], file=sys.stderr)
        return 1
    _, succeeded, failed, errored, late = map(int, counts.groups())
    times = sorted(int(line.split("\t")[2]) for line in lines) or [0]
    others = sum(line.split("\t")[1] != "200" for line in lines)
    print(
        json.dumps(
            {
                "units": succeeded,
                "seconds": float(seconds),
                "errors": failed + errored + late + others,
                "p50_us": times[len(times) // 2],
                "p99_us": times[len(times) * 99 // 100],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
