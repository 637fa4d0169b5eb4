#!/usr/bin/env bash
# agent.sh OURS PEER [SECONDS]: what two agents weigh side by side, on the same settings and with a sleeping process in
# Envoy's place: size of the binary, resident and private memory of the agent alone after some idle time, threads.
set -euo pipefail
ours=$(realpath "$1")
peer=$(realpath "$2")
seconds=${3:-20}
scratch=$(mktemp -d)
pids=()
end() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  rm -rf "$scratch"
}
trap end EXIT

printf '#!/bin/sh\nexec sleep 1000\n' >"$scratch/envoy"
chmod +x "$scratch/envoy"

# Nobody listens at the control plane's address: both try again now and then, as idle agents do.
start() { # NAME BINARY PORT
  local home=$scratch/$1
  mkdir -p "$home/etc/istio/proxy" "$home/var/run/secrets/tokens" "$home/var/run/secrets/istio" "$home/var/lib/istio/envoy"
  # Istio's agent wants a template; what comes of it is read by nobody here.
  echo '{}' >"$home/var/lib/istio/envoy/envoy_bootstrap_tmpl.json"
  (
    cd "$home"
    export PROXY_CONFIG="{configPath: $home/etc/istio/proxy, binaryPath: $scratch/envoy, proxyAdminPort: $(($3 + 1)), statusPort: $3, discoveryAddress: '127.0.0.1:15010', controlPlaneAuthPolicy: NONE, terminationDrainDuration: 0s}"
    export POD_NAME=a POD_NAMESPACE=default INSTANCE_IP=127.0.0.1 CLOUD_PLATFORM=none JWT_POLICY=third-party-jwt
    export CA_ADDR=127.0.0.1:15010 PILOT_CERT_PROVIDER=istiod ENVOY_STATUS_PORT=$(($3 + 2)) ENVOY_PROMETHEUS_PORT=$(($3 + 3))
    exec "$2" proxy sidecar --domain default.svc.cluster.local
  ) >"$scratch/$1.log" 2>&1 &
  pids+=($!)
}
start ours "$ours" 31020
start peer "$peer" 31120
sleep "$seconds"

field() { awk -v name="$2:" '$1 == name {print $2}' "/proc/$1/$3"; }
declare -A rss private size threads
for name in ours peer; do
  pid=${pids[0]}
  [ $name = peer ] && pid=${pids[1]}
  kill -0 "$pid" 2>/dev/null || { echo "$name ended:"; tail -20 "$scratch/$name.log"; exit 1; }
  rss[$name]=$(field "$pid" VmRSS status)
  private[$name]=$(awk '/^Private_/ {sum += $2} END {print sum}' "/proc/$pid/smaps_rollup")
  threads[$name]=$(field "$pid" Threads status)
done
size[ours]=$(($(stat -Lc %s "$ours") / 1024))
size[peer]=$(($(stat -Lc %s "$peer") / 1024))

ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.3f", a / b}'; }
printf '%-16s %10s %10s %8s %8s\n' "" ours peer ratio target
printf '%-16s %7d kB %7d kB %8s %8s\n' "binary" "${size[ours]}" "${size[peer]}" "$(ratio "${size[ours]}" "${size[peer]}")" 0.333
printf '%-16s %7d kB %7d kB %8s %8s\n' "idle, resident" "${rss[ours]}" "${rss[peer]}" "$(ratio "${rss[ours]}" "${rss[peer]}")" 0.250
printf '%-16s %7d kB %7d kB %8s\n' "idle, private" "${private[ours]}" "${private[peer]}" "$(ratio "${private[ours]}" "${private[peer]}")"
printf '%-16s %10d %10d\n' "threads" "${threads[ours]}" "${threads[peer]}"
