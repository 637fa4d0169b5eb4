#!/usr/bin/env bash
# demo.sh consul|eureka|zookeeper|memory: starts the registry and Pilot on this machine, registers two instances of
# `reviews`, and shows what Pilot knows of them. Everything ends with it.
set -euo pipefail
registry=$1
scratch=$(mktemp -d)
started=()
trap 'for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -rf "$scratch"' EXIT

start() { # what, command…
  echo "started  $1"
  "${@:2}" >"$scratch/$1.log" 2>&1 &
  started+=($!)
}
until_ok() { # url
  for _ in $(seq 600); do curl -fs -o "$scratch/page" "$1" && [ -s "$scratch/page" ] && return; sleep 0.1; done
  echo "$1 does not answer"; exit 1
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
  memory)
    flags=(--registries=Memory --memoryAddr=127.0.0.1:18016)
    register() {
      curl -fsS -o "$scratch/answer" -X PUT "http://127.0.0.1:18016/v1/services/reviews/instances/$1" -d \
        '{"address":"127.0.0.1","port":'"$2"',"metadata":{"version":"'"$3"'","protocol":"http"}}'
    } ;;
  *) echo "usage: $0 consul|eureka|zookeeper|memory"; exit 2 ;;
esac

start pilot-discovery target/debug/pilot-discovery discovery "${flags[@]}" --meshConfig="$scratch/mesh" \
  --networksConfig="$scratch/networks" --httpAddr=127.0.0.1:18080 --grpcAddr=127.0.0.1:18010 --secureGRPCAddr= --httpsAddr= \
  --monitoringAddr=127.0.0.1:18014
until curl -fs http://127.0.0.1:18080/ready; do sleep 0.1; done
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
