"""A gRPC client that is its own proxy, and the servers it calls.

  balance.py TARGET NAME=ADDRESS...

Starts a server at each address, which answers every call with its name. For each line with a number it makes so many
calls to TARGET and prints, as JSON, how often which server answered. What the client is told comes from the server of
xDS that GRPC_XDS_BOOTSTRAP_CONFIG names.
"""

import collections
import concurrent.futures
import json
import sys

import grpc


class Answer(grpc.GenericRpcHandler):
    def __init__(self, name):
        self.name = name.encode()

    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.name)


def serve(name, address):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Answer(name)])
    if server.add_insecure_port(address) == 0:
        raise SystemExit(f"cannot listen at {address}")
    server.start()
    return server


def main():
    target, *addresses = sys.argv[1:]
    servers = [serve(*address.split("=")) for address in addresses]
    channel = grpc.insecure_channel(target)
    call = channel.unary_unary("/pilot.Test/Who")
    for line in sys.stdin:
        counts = collections.Counter()
        for _ in range(int(line)):
            try:
                counts[call(b"", timeout=20, wait_for_ready=True).decode()] += 1
            except grpc.RpcError as error:
                counts[error.code().name] += 1
        print(json.dumps(counts), flush=True)
    for server in servers:
        server.stop(None)


main()
