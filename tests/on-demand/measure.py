"""What asking on demand saves: bytes and memory of one real Envoy, with the switch and without it.

    python3 tests/on-demand/measure.py --discovery target/release/pilot-discovery --envoy path/to/envoy

Services have one HTTP port and ten endpoints each. Endpoints do not exist but for those that are called, so nothing but
configuration takes memory.
"""

import argparse
import http.client
import http.server
import json
import pathlib
import subprocess
import tempfile
import threading
import time

XDS, ADMIN, WEB, PORT = 17510, 17514, 17516, 19560
CALLED = 10

SERVICE = """---
apiVersion: v1
kind: Service
metadata: {{name: s{i}, namespace: shop}}
spec: {{clusterIP: 10.{high}.{low}.1, ports: [{{name: http, port: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s{i}, namespace: shop, labels: {{kubernetes.io/service-name: s{i}}}}}
addressType: IPv4
ports: [{{name: http, port: {target}, protocol: TCP}}]
endpoints:
"""


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def world(services):
    text = ""
    for i in range(services):
        text += SERVICE.format(i=i, high=100 + i // 250, low=i % 250, port=PORT, target=18560)
        for endpoint in range(10):
            address = "127.0.0.1" if i < CALLED else f"10.{i // 250}.{i % 250}.{endpoint + 2}"
            if endpoint == 0 or i >= CALLED:
                text += f"- {{addresses: [{address}], conditions: {{ready: true}}}}\n"
    return text


def bootstrap():
    def address(port):
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    http2 = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    ads = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    return {
        "node": {
            "id": "sidecar~127.0.0.1~client.default~default.svc.cluster.local",
            "cluster": "client",
            "metadata": {"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE", "CLUSTER_ID": "Kubernetes"},
        },
        "admin": {"address": address(ADMIN)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "xds-grpc",
                    "type": "STATIC",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": http2,
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "xds-grpc",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(XDS)}}]}],
                    },
                }
            ]
        },
    }


def get(port, path, host="localhost"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def until(what, check):
    for _ in range(600):
        try:
            if check():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{what} did not come")


def counter(name):
    stats = json.loads(get(ADMIN, f"/stats?format=json&filter=^{name}$")[1])["stats"]
    return stats[0]["value"] if stats else 0


def state(envoy):
    memory = json.loads(get(ADMIN, "/memory")[1])
    status = pathlib.Path(f"/proc/{envoy.pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
    return {
        "received": counter("cluster.xds-grpc.upstream_cx_rx_bytes_total"),
        "allocated": int(memory["allocated"]),
        "resident": int(resident) * 1024,
        "clusters": counter("cluster_manager.active_clusters"),
    }


def run(arguments, switch):
    env = {
        "PILOT_ENABLE_ALPN_FILTER": "false",
        "PILOT_ENABLE_METADATA_EXCHANGE": "false",
        "PILOT_ENABLE_ON_DEMAND_CLUSTERS": switch,
    }
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config").mkdir()
        (folder / "config" / "world.yaml").write_text(world(arguments.services))
        (folder / "mesh.yaml").write_text("enableAutoMtls: false\n")
        (folder / "envoy.json").write_text(json.dumps(bootstrap()))
        flags = [
            f"--configDir={folder / 'config'}",
            f"--meshConfig={folder / 'mesh.yaml'}",
            f"--grpcAddr=127.0.0.1:{XDS}",
            f"--httpAddr=127.0.0.1:{WEB}",
            f"--monitoringAddr=127.0.0.1:{WEB + 1}",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        fixed = ["discovery", "--registries=File", "--httpsAddr=", "--secureGRPCAddr="]
        processes = [subprocess.Popen([arguments.discovery, *fixed, *flags], env=env, **quiet)]
        try:
            until("the server", lambda: get(WEB, "/ready")[0] == 200)
            command = [arguments.envoy, "-c", str(folder / "envoy.json"), "--concurrency", "1"]
            processes.append(subprocess.Popen([*command, "--use-dynamic-base-id"], **quiet))
            until("a listener", lambda: get(PORT, "/", "s0.shop.svc.cluster.local")[0] == 200)
            time.sleep(2)
            before = state(processes[1])
            for i in range(CALLED):
                status, _ = get(PORT, "/", f"s{i}.shop.svc.cluster.local")
                assert status == 200, f"s{i} answered with {status}"
            return before, state(processes[1])
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--discovery", required=True)
    parser.add_argument("--envoy", required=True)
    parser.add_argument("--services", type=int, default=1000)
    arguments = parser.parse_args()
    backend = http.server.ThreadingHTTPServer(("127.0.0.1", 18560), Backend)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    results = {switch: run(arguments, switch) for switch in ("false", "true")}
    print(f"{arguments.services} services, one called / ten called")
    print(f"{'':12} {'everything':>24} {'on demand':>24}")
    for figure in results["true"][0]:
        columns = [f"{one[figure]:,} / {ten[figure]:,}" for one, ten in results.values()]
        print(f"{figure:12} {columns[0]:>24} {columns[1]:>24}")


if __name__ == "__main__":
    main()
