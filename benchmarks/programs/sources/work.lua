-- Counts words, sieves primes, moves bodies. usage: work.lua ROUNDS (0: without end)
local function draws(state)
  return function()
    state = (state * 16807) % 2147483647
    return state
  end
end

local function once(seed)
  local draw, counts, sum = draws(seed + 1), {}, 0
  for _ = 1, 5000 do
    local word = "w" .. draw() % 700
    counts[word] = (counts[word] or 0) + 1
  end
  local words = {}
  for word in pairs(counts) do words[#words + 1] = word end
  table.sort(words)
  for i, word in ipairs(words) do sum = sum + i * counts[word] + #word end
  local composite = {}
  for i = 2, 20000 do
    if not composite[i] then
      sum = sum + i % 7
      for j = i * i, 20000, i do composite[j] = true end
    end
  end
  local x, v = {}, {}
  for i = 1, 40 do x[i], v[i] = draw() % 1000 / 10, 0 end
  for _ = 1, 20 do
    for i = 1, 40 do
      for j = 1, 40 do
        local d = x[j] - x[i]
        v[i] = v[i] + d / (d * d + 1) * 0.01
      end
    end
    for i = 1, 40 do x[i] = x[i] + v[i] end
  end
  return sum + math.floor(x[7] * 1000)
end

local rounds, sum, i = tonumber(arg[1] or 0), 0, 0
while rounds == 0 or i < rounds do
  sum = (sum * 31 + once(i % 1000)) % 1000000007
  i = i + 1
end
print(sum)
