#!/usr/bin/env bash
# demo.sh consul|eureka|zookeeper|nomad|marathon|cloudfoundry|dns|memory: starts the registry and Pilot on this machine, registers
# two instances of `reviews`, and shows what Pilot knows of them. demo.sh consul-keys|etcd|page: starts a store of rules and Pilot,
# and writes a rule. Everything ends with it.
set -euo pipefail
registry=$1
scratch=$(mktemp -d)
started=()
finish() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  # Nomad leaves the mounts of its tasks behind.
  awk -v folder="$scratch/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | tac | xargs -r umount
  rm -rf "$scratch"
}
trap finish EXIT

start() { # what, command…
  echo "started  $1"
  "${@:2}" >"$scratch/$1.log" 2>&1 &
  started+=($!)
}
until_ok() { # url
  for _ in $(seq 600); do curl -fs -o "$scratch/page" "$1" && [ -s "$scratch/page" ] && return; sleep 0.1; done
  echo "$1 does not answer"; exit 1
}
stand_in() { # what, arguments…: it is told on its standard input what there is
  mkfifo "$scratch/told"
  exec 9<>"$scratch/told"
  echo "started  $1, a stand-in"
  "target/debug/examples/$1" "${@:2}" <&9 >"$scratch/$1.log" 2>&1 &
  started+=($!)
}
zk() { java -cp "$PILOT_ZOOKEEPER/*" org.apache.zookeeper.ZooKeeperMain -server 127.0.0.1:12181 "$@" >"$scratch/zk.log" 2>&1; }

case $registry in
  consul)
    start consul "$PILOT_CONSUL" agent -dev -node demo -bind=127.0.0.1 -client=127.0.0.1 -http-port=18500 -dns-port=-1 \
      -grpc-port=-1 -grpc-tls-port=-1 -server-port=18300 -serf-lan-port=18301 -serf-wan-port=-1 -hcl 'disable_update_check=true'
    until_ok http://127.0.0.1:18500/v1/catalog/nodes
    flags=(--registries=Consul --consulserverURL=http://127.0.0.1:18500)
    register() { # id, port, version
      curl -fsS -X PUT http://127.0.0.1:18500/v1/agent/service/register -d \
        '{"ID":"'"$1"'","Name":"reviews","Address":"127.0.0.1","Port":'"$2"',"Meta":{"version":"'"$3"'","protocol":"http"}}'
    } ;;
  eureka)
    start eureka java -Xmx192m -jar "$PILOT_EUREKA" --server.address=127.0.0.1 --server.port=18761 \
      --eureka.client.register-with-eureka=false --eureka.client.fetch-registry=false \
      --eureka.server.response-cache-update-interval-ms=1000
    until_ok http://127.0.0.1:18761/eureka/apps
    flags=(--registries=Eureka --eurekaserverURL=http://127.0.0.1:18761/eureka)
    register() {
      curl -fsS http://127.0.0.1:18761/eureka/apps/REVIEWS -H 'content-type: application/json' -d \
        '{"instance":{"instanceId":"'"$1"'","hostName":"'"$1"'","app":"REVIEWS","ipAddr":"127.0.0.1","status":"UP",
          "port":{"$":'"$2"',"@enabled":"true"},"vipAddress":"reviews","metadata":{"version":"'"$3"'","protocol":"http"},
          "dataCenterInfo":{"@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo","name":"MyOwn"}}}'
    } ;;
  zookeeper)
    printf 'tickTime=500\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=12181\nadmin.enableServer=false\n' \
      "$scratch/zookeeper" >"$scratch/zoo.cfg"
    start zookeeper java -Xmx128m -cp "$PILOT_ZOOKEEPER/*" org.apache.zookeeper.server.ZooKeeperServerMain "$scratch/zoo.cfg"
    until zk create /services; do sleep 0.5; done
    zk create /services/reviews
    flags=(--registries=ZooKeeper --zookeeperserverURL=127.0.0.1:12181)
    register() {
      zk create "/services/reviews/$1" \
        '{"name":"reviews","id":"'"$1"'","address":"127.0.0.1","port":'"$2"',"payload":{"version":"'"$3"'","protocol":"http"}}'
    } ;;
  nomad) # as root: its tasks are processes of this machine
    cat >"$scratch/dev.hcl" <<'EOF'
bind_addr = "127.0.0.1"
disable_update_check = true
ports {
  http = 14646
  rpc  = 14647
  serf = 14648
}
client {
  network_interface = "lo"
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni,plugins_cni,bridge"
    "driver.allowlist"     = "raw_exec"
  }
}
EOF
    TMPDIR=$scratch start nomad "$PILOT_NOMAD" agent -dev -config "$scratch/dev.hcl" -log-level=WARN
    until curl -fs http://127.0.0.1:14646/v1/nodes | grep -q '"ready"'; do sleep 0.2; done
    flags=(--registries=Nomad --nomadserverURL=http://127.0.0.1:14646)
    register() { # a job for each version; its task only sleeps, and its service is registered all the same
      curl -fsS -o "$scratch/answer" http://127.0.0.1:14646/v1/jobs -d \
        '{"Job":{"ID":"'"$1"'","Name":"'"$1"'","Type":"service","Datacenters":["dc1"],"TaskGroups":[{"Name":"g","Count":1,
          "Networks":[{"DynamicPorts":[{"Label":"http"}]}],
          "Services":[{"Name":"reviews","Provider":"nomad","PortLabel":"http","Tags":["version='"$3"'","protocol=http"]}],
          "Tasks":[{"Name":"sleep","Driver":"raw_exec","Config":{"command":"/bin/sleep","args":["600"]},
                    "Resources":{"CPU":20,"MemoryMB":16},"KillTimeout":1000000000}]}]}}'
    }
    deregister() { curl -fsS -o "$scratch/answer" -X DELETE "http://127.0.0.1:14646/v1/job/$1?purge=true"; } ;;
  marathon) # a stand-in; each version is an app of its own that says which host it serves
    stand_in marathon 18090
    until_ok http://127.0.0.1:18090/ping
    flags=(--registries=Marathon --marathonserverURL=http://127.0.0.1:18090)
    register() { echo "task $1 $1.0 127.0.0.1:$2 $3" >&9; } ;;
  cloudfoundry) # a stand-in for Copilot
    stand_in copilot "$scratch" 19001 8080
    until [ -s "$scratch/cf.yaml" ]; do sleep 0.1; done
    flags=(--registries=CloudFoundry --cfConfig="$scratch/cf.yaml")
    register() { echo "route reviews.apps.example.com - $3 127.0.0.1:$2 50" >&9; } ;;
  memory)
    flags=(--registries=Memory --memoryAddr=127.0.0.1:18016)
    register() {
      curl -fsS -o "$scratch/answer" -X PUT "http://127.0.0.1:18016/v1/services/reviews/instances/$1" -d \
        '{"address":"127.0.0.1","port":'"$2"',"metadata":{"version":"'"$3"'","protocol":"http"}}'
    } ;;
  dns) # a name server of the tests
    stand_in nameserver 18053
    flags=(--registries=DNS --dnsserver=127.0.0.1:18053 --dnsNames=_http._tcp.reviews.example.com --registryServicePort=80)
    register() { echo "record _http._tcp.reviews.example.com 127.0.0.1:$2" >&9; } ;;
  consul-keys)
    start consul "$PILOT_CONSUL" agent -dev -node demo -bind=127.0.0.1 -client=127.0.0.1 -http-port=18500 -dns-port=-1 \
      -grpc-port=-1 -grpc-tls-port=-1 -server-port=18300 -serf-lan-port=18301 -serf-wan-port=-1 -hcl 'disable_update_check=true'
    until_ok http://127.0.0.1:18500/v1/catalog/nodes
    flags=(--registries= --consulserverURL=http://127.0.0.1:18500 --consulConfigPrefix=istio/config)
    write_rule() { curl -fsS -o "$scratch/answer" -X PUT --data-binary @- http://127.0.0.1:18500/v1/kv/istio/config/reviews; } ;;
  etcd)
    start etcd etcd --data-dir="$scratch/etcd" --listen-client-urls=http://127.0.0.1:12379 \
      --advertise-client-urls=http://127.0.0.1:12379 --listen-peer-urls=http://127.0.0.1:12380 \
      --initial-advertise-peer-urls=http://127.0.0.1:12380 --initial-cluster=default=http://127.0.0.1:12380
    until_ok http://127.0.0.1:12379/health
    flags=(--registries= --etcdserverURL=http://127.0.0.1:12379)
    write_rule() {
      curl -fsS -o "$scratch/answer" http://127.0.0.1:12379/v3/kv/put -d \
        '{"key":"'"$(printf /istio/config/reviews | base64 -w0)"'","value":"'"$(base64 -w0)"'"}'
    } ;;
  page)
    mkdir "$scratch/www"
    echo '# no rules yet' >"$scratch/www/rules.yaml"
    start web python3 -m http.server 18088 --bind 127.0.0.1 --directory "$scratch/www"
    until_ok http://127.0.0.1:18088/rules.yaml
    flags=(--registries= --configURL=http://127.0.0.1:18088/rules.yaml --configURLInterval=1s)
    write_rule() { cat >"$scratch/www/draft" && mv "$scratch/www/draft" "$scratch/www/rules.yaml"; } ;;
  *) sed -n '2,4s/^# //p' "$0"; exit 2 ;;
esac

start pilot-discovery target/debug/pilot-discovery discovery "${flags[@]}" --meshConfig="$scratch/mesh" \
  --networksConfig="$scratch/networks" --httpAddr=127.0.0.1:18080 --grpcAddr=127.0.0.1:18010 --secureGRPCAddr= --httpsAddr= \
  --monitoringAddr=127.0.0.1:18014
until curl -fs http://127.0.0.1:18080/ready; do sleep 0.1; done
if declare -F write_rule >/dev/null; then
  write_rule <<'EOF'
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: default}
spec: {host: reviews.example.com}
EOF
  echo "written  a DestinationRule in $registry"
  for _ in $(seq 300); do
    shown=$(target/debug/pilotctl registry sources --address 127.0.0.1:18014)
    awk '$2 == "ok" && $5 == 1 { found = 1 } END { exit !found }' <<<"$shown" && { echo; echo "$shown"; exit; }
    sleep 0.2
  done
  echo; echo "$shown"; exit 1
fi
register reviews-1 9081 v1
register reviews-2 9082 v2
echo "registered  reviews-1 (v1) and reviews-2 (v2) in $registry"
for _ in $(seq 300); do
  shown=$(target/debug/pilotctl registry endpoints --address 127.0.0.1:18014)
  [ "$(wc -l <<<"$shown")" = 3 ] && break
  sleep 0.2
done
echo; target/debug/pilotctl registry sources --address 127.0.0.1:18014
echo; target/debug/pilotctl registry services --address 127.0.0.1:18014
echo; echo "$shown"
[ "$(wc -l <<<"$shown")" = 3 ]
if [ "$registry" = nomad ]; then
  deregister reviews-1
  for _ in $(seq 300); do
    shown=$(target/debug/pilotctl registry endpoints --address 127.0.0.1:18014)
    [ "$(wc -l <<<"$shown")" = 2 ] && break
    sleep 0.2
  done
  echo; echo "after reviews-1 has stopped"; echo "$shown"
  deregister reviews-2
  [ "$(wc -l <<<"$shown")" = 2 ]
fi
