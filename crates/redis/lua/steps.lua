-- The algorithms, by their number; each file below adds one, when a batch has need of it.
local steps = {}
