-- wrk: sends the bytes of a file and says the result as one line of JSON. Each `@ID@` in them becomes 16 hexadecimal digits, which
-- are others in every request.
-- The file holds a whole request, so that the request line may be in absolute-form. A second argument `closes` says that
-- the proxy closes after each response without having said so: the end of a connection is no error then.
local bytes
local pieces = {}
local sent = 0
local worker

-- `done` runs elsewhere than `init`: what it has to know is asked of the thread.
function setup(thread)
  worker = thread
end

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  bytes = file:read("*a")
  file:close()
  for piece in (bytes .. "@ID@"):gmatch("(.-)@ID@") do pieces[#pieces + 1] = piece end
  closes = arguments[2] == "closes"
end

function request()
  if #pieces == 1 then return bytes end
  sent = sent + 1
  -- The first half is spread evenly, since samplers compare it.
  return table.concat(pieces, string.format("%08x%08x", sent * 2654435761 % 4294967296, sent))
end

function done(summary, latency)
  local errors = summary.errors
  local ends = errors.read
  if worker:get("closes") and ends <= summary.requests then ends = 0 end
  io.write(string.format(
    '\n{"units":%d,"seconds":%.6f,"errors":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + ends + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
