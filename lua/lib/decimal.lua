-- Exact sums of non-negative plain decimals as text: volumes have up to 28 digits, more than a double holds.

local CHUNK = 14 -- digits added at a time: two of them and a carry stay far below 2^53

local function split(text)
  local dot = text:find('.', 1, true)
  if dot then return text:sub(1, dot - 1), text:sub(dot + 1) end
  return text, ''
end

-- Sum of two strings of digits.
local function add_digits(x, y)
  local width = math.max(#x, #y)
  x, y = ('0'):rep(width - #x) .. x, ('0'):rep(width - #y) .. y
  local sum, carry = '', 0
  for last = width, 1, -CHUNK do
    local first = math.max(1, last - CHUNK + 1)
    local digits = last - first + 1
    local part = tonumber(x:sub(first, last)) + tonumber(y:sub(first, last)) + carry
    local base = 10 ^ digits
    carry = part >= base and 1 or 0
    local text = format('%.0f', part - carry * base)
    sum = ('0'):rep(digits - #text) .. text .. sum
  end
  return carry == 1 and '1' .. sum or sum
end

-- '5200' + '10.43' = '5210.43'
local function add_decimal(a, b)
  if a == '0' then return b end
  if b == '0' then return a end
  if #a <= 15 and #b <= 15 and not a:find('.', 1, true) and not b:find('.', 1, true) then
    return format('%.0f', a + b)
  end
  local a_whole, a_fraction = split(a)
  local b_whole, b_fraction = split(b)
  local scale = math.max(#a_fraction, #b_fraction)
  local x = a_whole .. a_fraction .. ('0'):rep(scale - #a_fraction)
  local y = b_whole .. b_fraction .. ('0'):rep(scale - #b_fraction)
  local sum
  if #x <= 15 and #y <= 15 then sum = format('%.0f', tonumber(x) + tonumber(y)) else sum = add_digits(x, y) end
  if #sum <= scale then sum = ('0'):rep(scale + 1 - #sum) .. sum end
  local whole = sum:sub(1, #sum - scale):gsub('^0+(%d)', '%1')
  local fraction = sum:sub(#sum - scale + 1):gsub('0+$', '')
  return fraction == '' and whole or whole .. '.' .. fraction
end
