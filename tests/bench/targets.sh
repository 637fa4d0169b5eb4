#!/usr/bin/env bash
# Every target for speed and size with the load tool of others: all shapes in order, then one table of what is met and missed.
#
#   tests/bench/targets.sh XDSLOAD CANDIDATE   XDSLOAD: folder of the tool; CANDIDATE: a pilot-discovery
#
# JUDGE_PEERS=folder      has a real istiod, which is measured too; without, only the floor is
# JUDGE_BUILD=folder      has the Kubernetes stand-in that istiod needs; without, it is built
# ETCD, KUBE_APISERVER    the shape that is fed by Kubernetes needs both, and PILOT_ISTIO_MODULE
# TARGETS=text            only shapes whose names match this regular expression; what was measured before stays in the table
# TINY=50x5               so many services and proxies for every shape: shows that all of it runs, and says nothing of targets
# REPS=5                  repetitions of single changes
# OUT=folder              JSON lines and logs (target/targets)
set -euo pipefail
[ $# = 2 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
xdsload=$1 candidate=$2 out=${OUT:-$root/target/targets} status=0
export XDSLOAD_WORK=${XDSLOAD_WORK:-$root/target/xdsload-work}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/xdsload}
mkdir -p "$out" "$XDSLOAD_WORK"

# 10,000 proxies are as many connections.
ulimit -n "$(ulimit -Hn)"
if [ -n "${JUDGE_PEERS:-}" ]; then
  [ -x "$JUDGE_PEERS/pilot-discovery" ] || { echo "no istiod in $JUDGE_PEERS" >&2; exit 2; }
  if [ -x "${JUDGE_BUILD:-}/xdsdiff" ]; then cp "$JUDGE_BUILD/xdsdiff" "$XDSLOAD_WORK/xdsdiff"; fi
fi

# run NAME SERVERS SERVICES PROXIES OPTION...: one shape on some of candidate, istiod and floor.
run() {
  local name=$1 servers=$2 services=$3 proxies=$4 only=() server
  shift 4
  [[ $name =~ ${TARGETS:-.} ]] || return 0
  if [ -n "${TINY:-}" ] && [ "$services" != 0 ]; then services=${TINY%x*} proxies=${TINY#*x}; fi
  for server in $servers; do
    if [ "$server" = istiod ]; then
      [ -n "${JUDGE_PEERS:-}" ] || continue
      only+=(--istiod "$JUDGE_PEERS/pilot-discovery")
    fi
    only+=(--only "$server")
  done
  echo "== $name: $services services, $proxies proxies, $servers"
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name"
  echo "${TINY:+tiny: }$services services, $proxies proxies, $(git -C "$root" describe --always --dirty)," \
    "$(date -u '+%Y-%m-%d %H:%M') UTC, load $(cut -d' ' -f1 /proc/loadavg) on $(nproc) processors" >"$out/$name/when"
  "$xdsload/bench.sh" --candidate "$candidate" --services "$services" --proxies "$proxies" --reps "${REPS:-5}" --limit 600 \
    "${only[@]}" "$@" --out "$out/$name" || { echo "$name is not complete: see $out/$name" >&2; status=1; }
}

all='candidate istiod floor'
run empty 'candidate istiod' 0 1 --phases cold
run delta-1000x100 "$all" 1000 100
run sotw-1000x100 "$all" 1000 100 --mode sotw
run churn-100 'candidate floor' 1000 100 --phases churn --churn-rate 100
run churn-1000 'candidate floor' 1000 100 --phases churn --churn-rate 1000
run sotw-10000x50 "$all" 10000 50 --mode sotw --phases cold
run delta-1000x1000 "$all" 1000 1000 --phases cold,eds,vs,churn,reconnect
run scoped-1000x10000 candidate 1000 10000 --scope 10 --phases cold
export ETCD=${ETCD:-$(command -v etcd)} KUBE_APISERVER=${KUBE_APISERVER:-$(command -v kube-apiserver)}
if [ -n "${PILOT_ISTIO_MODULE:-}" ]; then
  export ISTIO_CRDS=${ISTIO_CRDS:-$PILOT_ISTIO_MODULE/manifests/charts/base/files/crd-all.gen.yaml}
fi
if [ -x "$ETCD" ] && [ -x "$KUBE_APISERVER" ]; then
  run kube-1000x100 "$all" 1000 100 --feed kube --phases eds,vs,svc,churn
else
  echo "== kube-1000x100 is not run: there is no etcd, or no kube-apiserver"
fi

echo
python3 "$here/targets.py" "$out" | tee "$out/table.md"
exit "$status"
