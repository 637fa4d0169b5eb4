#!/usr/bin/awk -f
# Lines such as `contract|Consul 1.22.3|register|yes`, which suites print, become one table of all adapters; those that begin
# with `store` become another one.
BEGIN { FS = "|"; kinds[1] = "contract"; kinds[2] = "store" }
# What a runner prints before such a line stands on it too.
match($0, /(contract|store)\|/) {
  sub(/^.*(contract|store)\|/, substr($0, RSTART, RLENGTH))
  kind = $1; adapter = $2; row = $3
  if (!((kind, adapter) in seen)) { seen[kind, adapter] = 1; adapters[kind, ++columns[kind]] = adapter }
  if (!((kind, row) in known)) { known[kind, row] = 1; rows[kind, ++lines[kind]] = row }
  cells[kind, row, adapter] = $4
}
END {
  for (k = 1; k <= 2; k++) {
    kind = kinds[k]
    if (!columns[kind]) { empty = 1; continue }
    if (k > 1) print ""
    printf "| |"; for (c = 1; c <= columns[kind]; c++) printf " %s |", adapters[kind, c]
    printf "\n|---|"; for (c = 1; c <= columns[kind]; c++) printf "---|"
    print ""
    for (l = 1; l <= lines[kind]; l++) {
      row = rows[kind, l]
      printf "| %s |", row
      for (c = 1; c <= columns[kind]; c++) {
        at = kind SUBSEP row SUBSEP adapters[kind, c]
        printf " %s |", (at in cells) ? cells[at] : "–"
      }
      print ""
    }
  }
  exit empty
}
