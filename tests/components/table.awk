#!/usr/bin/awk -f
# Lines such as `contract|Consul 1.22.3|register|yes`, which suites print, become one table of all adapters.
BEGIN { FS = "|" }
!/contract\|/ { next }
{
  adapter = $2; row = $3
  if (!(adapter in seen)) { seen[adapter] = 1; adapters[++columns] = adapter }
  if (!(row in known)) { known[row] = 1; rows[++lines] = row }
  cells[row, adapter] = $4
}
END {
  printf "| |"; for (c = 1; c <= columns; c++) printf " %s |", adapters[c]
  printf "\n|---|"; for (c = 1; c <= columns; c++) printf "---|"
  print ""
  for (l = 1; l <= lines; l++) {
    printf "| %s |", rows[l]
    for (c = 1; c <= columns; c++) printf " %s |", ((rows[l], adapters[c]) in cells) ? cells[rows[l], adapters[c]] : "–"
    print ""
  }
  exit columns == 0
}
