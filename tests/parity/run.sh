#!/usr/bin/env bash
# Compares what we send with what a real istiod sends, on every open corpus, and prints one line for each.
# usage: run.sh JUDGE BINARY MODULE [TEXT]
#   JUDGE   folder of the judge    BINARY  our pilot-discovery    MODULE  Istio's module, for the corpora in it
#   TEXT    only corpora whose name contains it
# STEPS=cycle:20 also takes away and brings back the first documents of each corpus, one at a time.
set -euo pipefail
judge=$1 binary=$2 module=$3 only=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
networking=$module/tests/testdata/networking benchmarks=$module/pilot/pkg/xds/testdata/benchmarks
failed=0

compare() { # NAME ARGUMENTS...
  local name=$1 out
  shift
  [[ $name == *"$only"* ]] || return 0
  if out=$("$judge/judge.sh" --candidate "$binary" "$@" ${STEPS:+--steps "$STEPS"} --min 0 --show 5 2>&1); then
    echo "== $name: $(grep -E '^distinct|^equal' <<<"$out" | tail -2 | tr '\n' ' ')"
    grep -E '^ *(CDS|EDS|LDS|RDS|ECDS|NDS|removed)' <<<"$out" || true
    local share
    share=$(sed -nE 's|^distinct resources[^:]*: ([0-9]+) / ([0-9]+).*|\1 \2|p' <<<"$out" | tail -1)
    read -r equal all <<<"${share:-1 1}"
    if ((equal * 100 < all * 98)); then failed=$((failed + 1)); echo "   less than 98%"; fi
  else
    failed=$((failed + 1))
    echo "== $name: the judge did not come to an end"
    tail -n 5 <<<"$out"
  fi
}

compare small --config "$here/small" --nodes "$here/nodes.yaml" --derive 0
compare config --config "$module/tests/testdata/config"
for name in sidecar-ns-scope ingress-gateway sidecar-without-service envoyfilter-without-service; do
  compare "$name" --config "$networking/$name"
done
for name in serviceentry-workloadentry auto http tcp tls gateways virtualservice strict disabled authorizationpolicy \
  telemetry-api gateways-shared knative-gateway; do
  compare "$name" --config "$benchmarks/$name.yaml" --set Services=12 --set Instances=24
done
for folder in "$here"/own/*/; do
  [ -d "$folder" ] || continue
  mesh=()
  [ ! -f "$here/own/$(basename "$folder").mesh.yaml" ] || mesh=(--mesh "$here/own/$(basename "$folder").mesh.yaml")
  compare "own/$(basename "$folder")" --config "$folder" "${mesh[@]}"
done
if ((failed > 0)); then echo "$failed corpora are below 98%"; exit 1; fi
