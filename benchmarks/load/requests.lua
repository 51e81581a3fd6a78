-- wrk: sends the bytes of a file, always the same, and says the result as one line of JSON.
-- The file holds a whole request, so that the request line may be in absolute-form.
local bytes

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  bytes = file:read("*a")
  file:close()
end

function request()
  return bytes
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"units":%d,"seconds":%.6f,"errors":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
