#!/usr/bin/env bash
# Compares what we send with what a real istiod sends, on every open corpus, and prints one line for each.
# usage: run.sh JUDGE BINARY MODULE [TEXT]
#   JUDGE   folder of the judge    BINARY  our pilot-discovery    MODULE  Istio's module, for the corpora in it
#   TEXT    only corpora whose name contains it
# STEPS=cycle:20 also takes away and brings back the first documents of each corpus, one at a time.
# ACCEPT=path of a stock Envoy: instead, that Envoy is sent each corpus and must refuse nothing.
set -euo pipefail
judge=$1 binary=$2 module=$3 only=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
networking=$module/tests/testdata/networking benchmarks=$module/pilot/pkg/xds/testdata/benchmarks
failed=0

compare() { # NAME ARGUMENTS...
  local name=$1 out
  shift
  [[ $name == *"$only"* ]] || return 0
  if [ -n "${ACCEPT:-}" ]; then accept "$name" "$@"; return; fi
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

accept() { # NAME ARGUMENTS...
  local name=$1 out args=()
  shift
  case $name in
    # They ask for metrics, which only Istio's Envoy counts.
    telemetry-api | own/telemetry-metrics) return ;;
    # Code that an agent fetches before Envoy sees it.
    own/extensions-*) return ;;
    # It switches on the filter for MySQL, which a stock Envoy does not have.
    own/names-and-sessions) return ;;
    # Lists of revoked certificates in files that this machine does not have.
    own/gateway-tls | own/rules-tls) return ;;
    # Patches that do harm, as their user wrote them.
    own/envoyfilter-filters | own/envoyfilter-listeners) return ;;
  esac
  # Envoy is started as the nodes that the judge picks. A mesh may ask for filters that only Istio's Envoy has.
  while [ $# -gt 0 ]; do
    case $1 in --derive | --mesh | --nodes) ;; *) args+=("$1" "$2") ;; esac
    shift 2
  done
  if out=$("$judge/accept.sh" --candidate "$binary" --envoy "$ACCEPT" "${args[@]}" 2>&1); then
    echo "== $name: $(tail -n 1 <<<"$out")"
  else
    failed=$((failed + 1))
    echo "== $name: refused"
    tail -n 10 <<<"$out"
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
  beside=$here/own/$(basename "$folder") more=()
  [ ! -f "$beside.mesh.yaml" ] || more+=(--mesh "$beside.mesh.yaml")
  [ ! -f "$beside.networks.yaml" ] || more+=(--networks "$beside.networks.yaml")
  [ ! -f "$beside.nodes.yaml" ] || more+=(--nodes "$beside.nodes.yaml" --derive 4)
  # One K=V a line, for both servers.
  [ ! -f "$beside.env" ] || while read -r line; do more+=(--env "$line"); done <"$beside.env"
  compare "own/$(basename "$folder")" --config "$folder" "${more[@]}"
done
# Services of Kubernetes, from an API server.
compare kube/bookinfo --config "$module/samples/bookinfo/networking" --k8s "$module/samples/bookinfo/platform/kube/bookinfo.yaml"
for folder in "$here"/kube/*/; do
  more=()
  [ ! -f "$folder/nodes.yaml" ] || more+=(--nodes "$folder/nodes.yaml")
  [ ! -f "$folder/env" ] || while read -r line; do more+=(--env "$line"); done <"$folder/env"
  compare "kube/$(basename "$folder")" --config "$folder/config" --k8s "$folder/k8s" "${more[@]}"
done
if ((failed > 0)); then echo "$failed corpora are not as they should be"; exit 1; fi
