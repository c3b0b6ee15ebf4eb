-- Logins for wrk. Arguments: "fresh" and a number, for callers who have not been here before, from that
-- number on; or "blocked", for the one caller whom the servers have blocked.

local next, fixed = 0, nil

function init(arguments)
  if arguments[1] == "blocked" then
    fixed = { ["x-forwarded-for"] = "192.0.2.1", ["x-user"] = "somebody" }
  else
    next = tonumber(arguments[2])
  end
end

function request()
  if fixed then return wrk.format("POST", "/login", fixed) end
  next = next + 1
  local address = string.format("%d.%d.%d.%d", 11 + next / 16777216 % 200, next / 65536 % 256,
    next / 256 % 256, next % 256)
  return wrk.format("POST", "/login", { ["x-forwarded-for"] = address, ["x-user"] = "user" .. next })
end

-- One line for whoever started it, in place of what wrk says.
function done(summary, latency)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("seen %d %d %d %d %d %d", summary.requests, summary.duration, errors.status, lost,
    latency:percentile(50), latency:percentile(99)))
end
